# SPDX-License-Identifier: MIT
"""The image of the tests: our defconfig for QEMU with the small model, booted from its disk.

COLIBRI_MODELS names the folder with tiny.colibri, tiny.golden.json and colibri-model.hash
(default: build/models of the project).
"""

import json
import os

import infra.basetest

EXTERNAL = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
MODELS = os.environ.get("COLIBRI_MODELS", os.path.join(EXTERNAL, "..", "build", "models"))
MODEL = "/models/tiny.colibri"


def defconfig(*more):
    """Our defconfig with the small model alone. more: lines behind it."""
    name = os.path.join(EXTERNAL, "configs", "colibri_qemu_aarch64_defconfig")
    with open(name) as file:
        lines = [line.strip() for line in file if "COLIBRI_MODEL_NAMES" not in line]
    lines.append('BR2_PACKAGE_COLIBRI_MODEL_NAMES="tiny"')
    lines.append(f'BR2_PACKAGE_COLIBRI_MODEL_DIR="{MODELS}"')
    lines.append(f'BR2_PACKAGE_COLIBRI_MODEL_HASH_FILE="{MODELS}/colibri-model.hash"')
    lines.extend(more)
    return "\n".join(lines) + "\n"


def version():
    """What the package of the Python tools builds."""
    with open(os.path.join(EXTERNAL, "package", "python-colibri", "python-colibri.mk")) as file:
        lines = [line.split() for line in file]
    return next(line[2] for line in lines if line[:1] == ["PYTHON_COLIBRI_VERSION"])


def golden_results():
    """What the model must answer: (the whole file, a case that begins with a text)."""
    with open(os.path.join(MODELS, "tiny.golden.json")) as file:
        golden = json.load(file)
    case = next(c for c in golden["cases"]
                if c["kv"] == "f16" and c.get("prompt") and not c.get("chat"))
    return golden, case


class ImageTest(infra.basetest.BRTest):
    br2_external = [EXTERNAL]
    config = defconfig()

    def boot(self):
        images = os.path.join(self.builddir, "images")
        disk = os.path.join(images, "disk.img")
        self.emulator.boot(
            arch="aarch64",
            kernel=os.path.join(images, "Image"),
            kernel_cmdline=["console=ttyAMA0", "root=PARTLABEL=root", "ro"],
            options=["-M", "virt", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "512", "-nic", "none",
                     "-drive", f"if=none,id=disk,format=raw,readonly=on,file={disk}",
                     "-device", "virtio-blk-device,drive=disk"])
        self.emulator.login(timeout=180)

    def output(self, command, timeout=120):
        lines, code = self.emulator.run(command, timeout=timeout)
        self.assertEqual(code, 0, f"{command}: {lines}")
        return "\n".join(lines)
