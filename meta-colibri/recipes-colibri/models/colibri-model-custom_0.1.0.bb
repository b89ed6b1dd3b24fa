# SPDX-License-Identifier: MIT
# A model of your own, without a recipe of your own. In local.conf or the distro:
#
#   COLIBRI_MODEL_DIR = "/srv/models"              holds NAME.colibri and NAME.golden.json
#   COLIBRI_CUSTOM_MODEL = "NAME"
#   COLIBRI_CUSTOM_ROOT = "root hash"              as `colibri verify` prints it
#   COLIBRI_CUSTOM_LICENSE = "Apache-2.0"          the model's
#   COLIBRI_MODELS = "colibri-model-custom"
#   COLIBRI_SERVICE_MODEL = "NAME"
SUMMARY = "The model of COLIBRI_MODEL_DIR"
DESCRIPTION = "A finished .colibri file with its golden results, verified and packaged."
SECTION = "models"

COLIBRI_CUSTOM_MODEL ?= ""
COLIBRI_CUSTOM_ROOT ?= ""
COLIBRI_CUSTOM_LICENSE ?= "CLOSED"

LICENSE = "${COLIBRI_CUSTOM_LICENSE}"
LIC_FILES_CHKSUM = "file://LICENSE;md5=e1acea2d525d15c59569ba7148b6400f"

COLIBRI_MODEL = "${COLIBRI_CUSTOM_MODEL}"
COLIBRI_MODEL_ROOT = "${COLIBRI_CUSTOM_ROOT}"

inherit colibri-model
