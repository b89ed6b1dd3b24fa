# SPDX-License-Identifier: MIT
# Nothing happens without the feature: a build that only has this layer keeps its signatures.
require ${@bb.utils.contains('DISTRO_FEATURES', 'colibri', 'linux-yocto_colibri.inc', '', d)}
