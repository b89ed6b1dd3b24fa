# SPDX-License-Identifier: MIT
#
# Kernel options of Colibri, for any kernel recipe: the fragments of configs/kernel, and a check of the
# final configuration that fails the build.
#
#   COLIBRI_KERNEL_FRAGMENTS  names of fragments, applied in this order and then demanded
#   COLIBRI_KERNEL_VENDOR     fragments of vendor kernels: a line counts only where Kconfig declares the symbol
#
# linux-yocto gets the fragments through colibri.scc (linux-yocto_%.bbappend). Any other kernel:
#   inherit colibri-kernel
# in a bbappend of its recipe; the fragments are then merged into its .config.

COLIBRI_KERNEL_FRAGMENTS ?= "colibri filesystems ext4 network hardening diagnostics"
COLIBRI_KERNEL_FRAGMENTS:append:qemuall = " virtio faults"
COLIBRI_KERNEL_VENDOR ?= "vendor-mlock"

inherit python3native

DEPENDS += "python3-native"

FILESEXTRAPATHS:prepend := "${COLIBRI_REPOSITORY}/configs:"
# kmeta: a folder that kern-tools search for what an .scc names.
SRC_URI += "file://kernel;type=kmeta;subdir=colibri;destsuffix=colibri/kernel"

COLIBRI_KCONFIG_CHECK = "nativepython3 -B ${UNPACKDIR}/colibri/kernel/kconfig_check.py"
COLIBRI_KERNEL_FILES = "${@' '.join('${UNPACKDIR}/colibri/kernel/%s.cfg' % name for name in d.getVar('COLIBRI_KERNEL_FRAGMENTS').split())}"
COLIBRI_VENDOR_FILES = "${@' '.join('${UNPACKDIR}/colibri/kernel/%s.cfg' % name for name in d.getVar('COLIBRI_KERNEL_VENDOR').split())}"
# SRCARCH of the kernel's Kconfig tree.
COLIBRI_KERNEL_ARCH = "${@'arm64' if d.getVar('TARGET_ARCH') == 'aarch64' else 'x86' if d.getVar('TARGET_ARCH') == 'x86_64' else d.getVar('TARGET_ARCH')}"

# CONFIG_MLOCK and its like: lines for vendor kernels. What the tree declares is merged; on a mainline
# kernel that is nothing. Kernels that are not configured by kern-tools get all fragments here.
do_configure:append() {
    files="${COLIBRI_VENDOR_FILES}"
    if ! ${@'true' if bb.data.inherits_class('kernel-yocto', d) else 'false'}; then
        files="${COLIBRI_KERNEL_FILES} $files"
    fi
    ${COLIBRI_KCONFIG_CHECK} $files --kconfig-tree ${S} --arch ${COLIBRI_KERNEL_ARCH} \
        --write-applicable ${WORKDIR}/colibri.cfg
    if grep -q CONFIG_ ${WORKDIR}/colibri.cfg; then
        ${S}/scripts/kconfig/merge_config.sh -m -O ${B} ${B}/.config ${WORKDIR}/colibri.cfg
        oe_runmake_call -C ${S} O=${B} olddefconfig
    fi
}

# An option that was dropped (a dependency that is missing, another fragment) fails the build, whatever
# the audit levels of kern-tools are.
do_colibri_kernel_check() {
    ${COLIBRI_KCONFIG_CHECK} ${COLIBRI_KERNEL_FILES} ${COLIBRI_VENDOR_FILES} --config ${B}/.config \
        --kconfig-tree ${S} --arch ${COLIBRI_KERNEL_ARCH} ||
        bbfatal "the kernel's configuration lacks options that Colibri needs (above); see docs/yocto.md"
}
addtask colibri_kernel_check after do_configure before do_compile
