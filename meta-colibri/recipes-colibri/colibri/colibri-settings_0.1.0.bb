# SPDX-License-Identifier: MIT
SUMMARY = "Settings of the Colibri service for one model on one board"
DESCRIPTION = "Written by `colibri units` from the memory plan of the model on the board, so that the device \
computes exactly the plan of the host; without a board, the path of the model alone."

require colibri-source.inc
require colibri-models.inc

inherit python3native

INHIBIT_DEFAULT_DEPS = "1"
DEPENDS = "${COLIBRI_MODELS}"

PACKAGE_ARCH = "${MACHINE_ARCH}"

# A name in configs/boards/ or the path of a board file; empty: no plan, the device chooses.
COLIBRI_BOARD ?= ""
COLIBRI_BOARD:qemuarm64 ?= "qemu-aarch64"
# Options of `colibri units`, e.g. --context 512 --budget 900M.
COLIBRI_PLAN_OPTIONS ?= ""

SRC_URI += "${@'' if d.getVar('COLIBRI_TARBALL') else 'file://configs/boards'}"

do_compile() {
    model=${STAGING_DIR_HOST}${COLIBRI_MODELDIR}/${COLIBRI_SERVICE_MODEL}.colibri
    if [ ! -f $model ]; then
        bbfatal "COLIBRI_SERVICE_MODEL: no ${COLIBRI_SERVICE_MODEL}.colibri in the packages of COLIBRI_MODELS (${COLIBRI_MODELS})"
    fi
    rm -rf ${B}/out
    mkdir -p ${B}/out
    if [ -n "${COLIBRI_BOARD}" ]; then
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=${S}/engine nativepython3 -m colibri units $model \
            --board ${COLIBRI_BOARD} --device-model ${COLIBRI_MODELDIR}/${COLIBRI_SERVICE_MODEL}.colibri \
            --output-dir ${B}/out ${COLIBRI_PLAN_OPTIONS}
    else
        sed 's,^COLIBRI_MODEL=.*,COLIBRI_MODEL="${COLIBRI_MODELDIR}/${COLIBRI_SERVICE_MODEL}.colibri",' \
            ${S}/engine/units/colibri.conf > ${B}/out/colibri.conf
    fi
}

do_install() {
    install -D -m 0644 ${B}/out/colibri.conf ${D}${sysconfdir}/colibri/colibri.conf
    if ${@bb.utils.contains('DISTRO_FEATURES', 'systemd', 'true', 'false', d)}; then
        for folder in ${B}/out/*.service.d; do
            [ -d $folder ] || continue
            install -d ${D}${systemd_system_unitdir}/$(basename $folder)
            install -m 0644 $folder/* ${D}${systemd_system_unitdir}/$(basename $folder)
        done
    fi
}

FILES:${PN} += "${systemd_system_unitdir}"
CONFFILES:${PN} = "${sysconfdir}/colibri/colibri.conf"
RDEPENDS:${PN} = "${COLIBRI_MODELS}"
