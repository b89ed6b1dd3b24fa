# SPDX-License-Identifier: MIT
SUMMARY = "Python package of Colibri: convert, inspect, verify, plan and run models"
DESCRIPTION = "Runs models through the C engine, which it brings along, and needs nothing else. Converting \
and the reference need numpy, which a device has no use for: it is recommended by nothing here."

require colibri-source.inc

inherit python_mesonpy

PEP517_SOURCE_PATH = "${S}/engine"
MESON_SOURCEPATH = "${S}/engine"

# pyproject.toml has the options of the wheel; the class would give some of them twice.
MESONOPTS = ""

do_install:append() {
    # The wheel's tag is that of the machine that built it.
    find ${D}${PYTHON_SITEPACKAGES_DIR} -name direct_url.json -delete
}

RDEPENDS:${PN} = "\
    python3-core \
    python3-compression \
    python3-crypt \
    python3-ctypes \
    python3-io \
    python3-json \
    python3-math \
    python3-mmap \
    python3-numbers \
    python3-shell \
    python3-threading \
    python3-tomllib \
"
