# SPDX-License-Identifier: MIT
SUMMARY = "Development image: root logs in without a password; the C suite, testimage"
DESCRIPTION = "For the boot suite, ptest and bitbake -c testimage. Never on a device that leaves the house."

require colibri-image.inc

# testimage asks for the first three and for an SSH server.
COLIBRI_DEV_FEATURES ?= "ssh-server-dropbear"
IMAGE_FEATURES += "allow-empty-password allow-root-login empty-root-password ${COLIBRI_DEV_FEATURES}"
# OpenEmbedded's busybox has no `head -c`, `dd conv=`, `od -A` and base64: the boot suite asks for all four.
IMAGE_INSTALL += "packagegroup-colibri-dev-tools coreutils"

IMAGE_CLASSES += "testimage"
TEST_SUITES = "ping ssh colibri ptest"
