# SPDX-License-Identifier: MIT

include $(sort $(wildcard $(BR2_EXTERNAL_COLIBRI_PATH)/package/*/*.mk))

# A kernel build drops an option that it does not know, or whose dependencies
# are not met, without a word. Here that is an error: each line of our
# fragments, and what the package asks for, must be in the final .config.
ifeq ($(BR2_PACKAGE_COLIBRI)$(BR2_LINUX_KERNEL),yy)
COLIBRI_KERNEL_FRAGMENTS = \
	$(sort $(COLIBRI_KERNEL_NEEDS) \
		$(filter $(BR2_EXTERNAL_COLIBRI_PATH)/%, \
			$(call qstrip,$(BR2_LINUX_KERNEL_CONFIG_FRAGMENT_FILES))))

define COLIBRI_CHECK_KCONFIG
	@$(call MESSAGE,"Checking that no kernel option was dropped")
	$(BR2_EXTERNAL_COLIBRI_PATH)/utils/check-kconfig \
		$(@D) $(KERNEL_ARCH) $(COLIBRI_KERNEL_FRAGMENTS)
endef
LINUX_POST_CONFIGURE_HOOKS += COLIBRI_CHECK_KCONFIG
endif
