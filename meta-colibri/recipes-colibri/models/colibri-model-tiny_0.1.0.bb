# SPDX-License-Identifier: MIT
SUMMARY = "Tiny random model: shows that a device computes the right bits"
DESCRIPTION = "Made from configs/models/tiny.toml by a deterministic conversion, without any download. Its text \
means nothing."
SECTION = "models"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://LICENSE;md5=e1acea2d525d15c59569ba7148b6400f"

COLIBRI_MODEL = "tiny"
COLIBRI_MODEL_RECIPE = "configs/models/tiny.toml"
COLIBRI_MODEL_ROOT = "6a3461207b52b0231e73fc0f3486a1722309c2a4e82157d5d6978a2da076d2c0"
COLIBRI_GOLDEN = "\
    '--prompt=the cat sat on 1200 hats, and that' --prompt=. '--chat-prompt=Who is there?' \
    --ids=1,330,7,0,200 --tokens=32 \
"

inherit colibri-model
