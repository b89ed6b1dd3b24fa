# SPDX-License-Identifier: MIT
SUMMARY = "Production image: Colibri's service behind its health gate, nobody logs in"
DESCRIPTION = "Read-only root file system, models on a partition of their own, the four security macros of \
production forced in the build."

require colibri-image.inc

IMAGE_INSTALL += "packagegroup-colibri-production"

# What a development configuration may have put into EXTRA_IMAGE_FEATURES has no place here.
python () {
    open_doors = {"allow-empty-password", "empty-root-password", "allow-root-login", "serial-autologin-root"}
    found = open_doors & set(d.getVar("IMAGE_FEATURES").split())
    if found:
        raise bb.parse.SkipRecipe("colibri-image is for production, IMAGE_FEATURES has %s; build colibri-image-dev" % " ".join(sorted(found)))
}

IMAGE_QA_COMMANDS += "colibri_image_nobody_logs_in"

python colibri_image_nobody_logs_in() {
    """No account has an empty password or one that a build made known."""
    from pathlib import Path

    etc = Path(d.getVar("IMAGE_ROOTFS")) / "etc"
    accounts = [line.split(":")[:2] for name in ("passwd", "shadow") if (etc / name).is_file()
                for line in (etc / name).read_text().splitlines() if ":" in line]
    locked = ("*", "x", "!", "!!", "!*")
    doors = sorted({name for name, password in accounts if password not in locked})
    if doors:
        raise oe.utils.ImageQAFailed("accounts that can log in: %s" % ", ".join(doors), colibri_image_nobody_logs_in)
}
