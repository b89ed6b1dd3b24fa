# SPDX-License-Identifier: MIT
# A recipe of its own: where the engine is built without the macros, nothing else becomes unbuildable.
SUMMARY = "Colibri for production: insists on the forced security macros"
DESCRIPTION = "packagegroup-colibri, and a package that only an engine with all four macros provides."

PACKAGE_ARCH = "${MACHINE_ARCH}"

inherit packagegroup

RDEPENDS:${PN} = "packagegroup-colibri colibri-forced-security"
