# SPDX-License-Identifier: MIT
SUMMARY = "Mixture-of-Experts inference for small boards: library, command, service"
DESCRIPTION = "A C engine that runs sparse language models with planned memory, one bit pattern on every \
machine, verified model files and a closed sandbox."

require colibri-source.inc

inherit meson pkgconfig ptest systemd update-rc.d useradd

MESON_SOURCEPATH = "${S}/engine"

SRC_URI += "file://run-ptest"

# The first four are what a production image must have (docs/security.md): a macro in the build that
# nothing lowers at run time. A build without one of them does not provide colibri-forced-security,
# and colibri-image does not build.
PACKAGECONFIG ??= "secure-mode no-logging verify-model-hash sandbox"
PACKAGECONFIG[secure-mode] = ",,"
PACKAGECONFIG[no-logging] = ",,"
PACKAGECONFIG[verify-model-hash] = ",,"
PACKAGECONFIG[sandbox] = ",,"
# ed25519 signatures of models; libsodium is in meta-oe. signed-only refuses every other model.
PACKAGECONFIG[signatures] = "-Dsignatures=enabled,-Dsignatures=disabled,libsodium"
PACKAGECONFIG[signed-only] = ",,"

# With signatures: the one key to trust, 64 hexadecimal digits; no option replaces it.
COLIBRI_PUBLIC_KEY ?= ""

COLIBRI_MACROS = "\
    secure-mode:COLIBRI_SECURE_MODE \
    no-logging:COLIBRI_NO_LOGGING \
    verify-model-hash:COLIBRI_VERIFY_MODEL_HASH \
    sandbox:COLIBRI_RESTRICTED_SYSCALLS \
    signed-only:COLIBRI_SIGNED_ONLY \
"

def colibri_forced(d):
    """Macros of the PACKAGECONFIG words, as meson's option takes them."""
    chosen = (d.getVar("PACKAGECONFIG") or "").split()
    pairs = [pair.split(":") for pair in d.getVar("COLIBRI_MACROS").split()]
    return ",".join(macro for word, macro in pairs if word in chosen)

# The init script for System V serves busybox's init too, which reads the same rc folders.
COLIBRI_UNITS = "${@bb.utils.contains('DISTRO_FEATURES', 'systemd', 'systemd', 'sysv', d)}"

EXTRA_OEMESON = "\
    -Dunits=${COLIBRI_UNITS} \
    -Dsystemd_unit_dir=${systemd_system_unitdir} \
    -Dforced=${@colibri_forced(d)} \
    -Dtests=${@'true' if d.getVar('PTEST_ENABLED') == '1' else 'false'} \
    ${@'-Dpublic_key=' + d.getVar('COLIBRI_PUBLIC_KEY') if d.getVar('COLIBRI_PUBLIC_KEY') else ''} \
"

# The settings name a model and follow its memory plan: colibri-settings writes them. busybox's init
# starts what is in rc5.d, and nothing but the feature sysvinit makes update-rc.d put a link there.
do_install:append() {
    rm -f ${D}${sysconfdir}/colibri/colibri.conf
    rmdir --ignore-fail-on-non-empty ${D}${sysconfdir}/colibri ${D}${sysconfdir}
    if [ "${VIRTUAL-RUNTIME_init_manager}" = busybox ]; then
        install -d ${D}${sysconfdir}/rc5.d
        ln -s ../init.d/colibri ${D}${sysconfdir}/rc5.d/S95colibri
    fi
}

do_install_ptest() {
    install -d ${D}${PTEST_PATH}/golden
    for program in checkkernels sandbox_probe ${B}/test_*; do
        program=${B}/$(basename $program)
        if [ -f $program ] && [ -x $program ]; then
            install -m 0755 $program ${D}${PTEST_PATH}
        fi
    done
    install -m 0644 ${S}/engine/native/tests/golden/*.txt ${D}${PTEST_PATH}/golden
}

PACKAGES =+ "libcolibri ${PN}-tools ${PN}-service"

SUMMARY:libcolibri = "${SUMMARY} - library"
FILES:libcolibri = "${libdir}/libcolibri.so.*"

SUMMARY:${PN}-tools = "${SUMMARY} - colibrictl"
FILES:${PN}-tools = "${bindir}/colibrictl ${bindir}/colibri_test"
RPROVIDES:${PN}-tools += "${@'colibri-forced-security' if all(word in d.getVar('PACKAGECONFIG').split() for word in ('secure-mode', 'no-logging', 'verify-model-hash', 'sandbox')) else ''}"

SUMMARY:${PN}-service = "${SUMMARY} - units, init script, health gate"
FILES:${PN}-service = "\
    ${systemd_system_unitdir} \
    ${nonarch_libdir}/sysusers.d \
    ${nonarch_libdir}/tmpfiles.d \
    ${libdir}/sysusers.d \
    ${libdir}/tmpfiles.d \
    ${libexecdir}/colibri \
    ${sysconfdir}/init.d \
    ${sysconfdir}/rc5.d \
"
RDEPENDS:${PN}-service = "${PN}-tools colibri-settings"

# The name of the recipe stands for all that a device runs.
ALLOW_EMPTY:${PN} = "1"
RDEPENDS:${PN} = "libcolibri ${PN}-tools ${PN}-service"
RDEPENDS:${PN}-dev = "libcolibri (= ${EXTENDPKGV})"
RDEPENDS:${PN}-ptest = "${PN}-tools"

SYSTEMD_PACKAGES = "${PN}-service"
SYSTEMD_SERVICE:${PN}-service = "colibri.socket colibri-health.service colibri.service"

INITSCRIPT_PACKAGES = "${PN}-service"
INITSCRIPT_NAME:${PN}-service = "colibri"
INITSCRIPT_PARAMS:${PN}-service = "defaults 95 05"

USERADD_PACKAGES = "${PN}-service"
GROUPADD_PARAM:${PN}-service = "--system colibri"
USERADD_PARAM:${PN}-service = "\
    --system --no-create-home --home-dir /nonexistent --shell ${base_sbindir}/nologin \
    --gid colibri --comment 'Colibri inference server' colibri \
"
