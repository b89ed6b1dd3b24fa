# SPDX-License-Identifier: MIT
#
# Models on a partition of their own: what packages have put into COLIBRI_MODELDIR becomes
# IMAGE_LINK_NAME.models.erofs, uncompressed (weights do not compress, and so they are mapped and read
# with O_DIRECT), read-only, the same bytes for the same models. The root file system keeps the empty
# mount point and a line in fstab; colibri-image.wks.in puts the file into the disk image as it is.

require recipes-colibri/colibri/colibri-models.inc

# The file system has a fixed identity: fstab finds it on whatever disk it is.
COLIBRI_MODELS_UUID ?= "c011b410-0000-4000-8000-000000000001"
COLIBRI_MODELS_FOLDER = "${WORKDIR}/colibri-models"
COLIBRI_MODELS_FILE = "${IMGDEPLOYDIR}/${IMAGE_NAME}.models.erofs"
COLIBRI_MODELS_FSTAB ?= "UUID=${COLIBRI_MODELS_UUID} ${COLIBRI_MODELDIR} erofs ro,nodev,nosuid,noexec 0 0"

do_image[depends] += "erofs-utils-native:do_populate_sysroot"
# wic writes no fstab of its own for it.
WICVARS:append = " COLIBRI_MODELS_FILE COLIBRI_MODELDIR"

# runqemu and testimage show the machine the models as a disk of their own.
QB_OPT_APPEND:append:qemuall = " \
    -drive if=none,id=colibri-models,format=raw,readonly=on,file=@DEPLOY_DIR_IMAGE@/${IMAGE_LINK_NAME}.models.erofs \
    -device virtio-blk-pci,drive=colibri-models,serial=colibri-models \
"

# do_image may run again on the root file system of an earlier do_rootfs: what it needs lies beside that.
ROOTFS_POSTPROCESS_COMMAND += "colibri_models_aside"
IMAGE_PREPROCESS_COMMAND += "colibri_model_partition"

colibri_models_aside() {
    models=${IMAGE_ROOTFS}${COLIBRI_MODELDIR}
    if [ -z "$(ls $models/*.colibri 2>/dev/null)" ]; then
        bbfatal "the image has no model in ${COLIBRI_MODELDIR}; set COLIBRI_MODELS (docs/yocto.md)"
    fi
    rm -rf ${COLIBRI_MODELS_FOLDER}
    cp -R $models ${COLIBRI_MODELS_FOLDER}
    rm -f $models/*
    grep -q " ${COLIBRI_MODELDIR} " ${IMAGE_ROOTFS}${sysconfdir}/fstab ||
        echo "${COLIBRI_MODELS_FSTAB}" >> ${IMAGE_ROOTFS}${sysconfdir}/fstab
}

colibri_model_partition() {
    # Extended attributes and times are nothing that reads them; whole blocks can be mapped.
    env -u SOURCE_DATE_EPOCH mkfs.erofs --quiet --all-root -x-1 -T0 -U${COLIBRI_MODELS_UUID} -Enoinline_data \
        ${COLIBRI_MODELS_FILE} ${COLIBRI_MODELS_FOLDER}
    ln -sf $(basename ${COLIBRI_MODELS_FILE}) ${IMGDEPLOYDIR}/${IMAGE_LINK_NAME}.models.erofs
}
