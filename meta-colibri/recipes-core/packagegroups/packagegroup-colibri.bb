# SPDX-License-Identifier: MIT
SUMMARY = "Colibri: engine, service, models"
DESCRIPTION = "What a device runs; -dev-tools adds the C suite."

require recipes-colibri/colibri/colibri-models.inc

# The names of models, and of libraries that are renamed, are the machine's.
PACKAGE_ARCH = "${MACHINE_ARCH}"

inherit packagegroup

PACKAGES = "${PN} ${PN}-dev-tools"

RDEPENDS:${PN} = "\
    colibri-service \
    colibri-tools \
    libcolibri \
    ${COLIBRI_MODELS} \
"
RDEPENDS:${PN}-dev-tools = "\
    ${PN} \
    ${@bb.utils.contains('DISTRO_FEATURES', 'ptest', 'colibri-ptest ptest-runner', '', d)} \
"
