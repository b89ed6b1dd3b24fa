################################################################################
#
# colibri
#
################################################################################

COLIBRI_VERSION = 0.1.0
COLIBRI_SITE = $(call qstrip,$(BR2_PACKAGE_COLIBRI_DIST))
COLIBRI_SITE_METHOD = file
COLIBRI_LICENSE = MIT
COLIBRI_LICENSE_FILES = LICENSE
COLIBRI_INSTALL_STAGING = YES
COLIBRI_DEPENDENCIES = host-pkgconf

# Buildroot asks for -O3, the sizes and bits of the project are those of -O2.
COLIBRI_CONF_OPTS = \
	-Doptimization=2 \
	-Db_pie=true \
	-Dpython=false \
	-Dtests=$(if $(BR2_PACKAGE_COLIBRI_TESTS),true,false) \
	-Dtools=$(if $(BR2_PACKAGE_COLIBRI_TOOLS),true,false) \
	-Dstatic_tools=$(if $(BR2_STATIC_LIBS),true,false)

COLIBRI_FORCED = \
	$(if $(BR2_PACKAGE_COLIBRI_FORCE_SECURE_MODE),COLIBRI_SECURE_MODE) \
	$(if $(BR2_PACKAGE_COLIBRI_FORCE_NO_LOGGING),COLIBRI_NO_LOGGING) \
	$(if $(BR2_PACKAGE_COLIBRI_FORCE_VERIFY_MODEL_HASH),COLIBRI_VERIFY_MODEL_HASH) \
	$(if $(BR2_PACKAGE_COLIBRI_FORCE_RESTRICTED_SYSCALLS),COLIBRI_RESTRICTED_SYSCALLS) \
	$(if $(BR2_PACKAGE_COLIBRI_FORCE_SIGNED_ONLY),COLIBRI_SIGNED_ONLY)
COLIBRI_CONF_OPTS += -Dforced=$(subst $(space),$(comma),$(strip $(COLIBRI_FORCED)))

ifeq ($(BR2_PACKAGE_COLIBRI_SIGNATURES),y)
COLIBRI_DEPENDENCIES += libsodium
COLIBRI_CONF_OPTS += \
	-Dsignatures=enabled \
	-Dpublic_key=$(call qstrip,$(BR2_PACKAGE_COLIBRI_PUBLIC_KEY))
else
COLIBRI_CONF_OPTS += -Dsignatures=disabled
endif

ifeq ($(BR2_PACKAGE_COLIBRI_SERVICE),y)
ifeq ($(BR2_INIT_SYSTEMD),y)
COLIBRI_CONF_OPTS += -Dunits=systemd -Dsystemd_unit_dir=/usr/lib/systemd/system
else
COLIBRI_CONF_OPTS += -Dunits=busybox -Dsysconfdir=/etc
endif

define COLIBRI_USERS
	colibri -1 colibri -1 * - - - Colibri inference server
endef
else
COLIBRI_CONF_OPTS += -Dunits=none
endif

ifeq ($(BR2_PACKAGE_COLIBRI_TESTS),y)
define COLIBRI_INSTALL_TESTS
	$(INSTALL) -D -m 0755 $(@D)/buildroot-build/checkkernels \
		$(TARGET_DIR)/usr/libexec/colibri/checkkernels
	mkdir -p $(TARGET_DIR)/usr/libexec/colibri/golden
	$(INSTALL) -m 0644 $(@D)/native/tests/golden/*.txt \
		$(TARGET_DIR)/usr/libexec/colibri/golden/
endef
COLIBRI_POST_INSTALL_TARGET_HOOKS += COLIBRI_INSTALL_TESTS
endif

# What the engine asks of a kernel stands in these files, and only there.
COLIBRI_KERNEL_NEEDS = \
	$(BR2_EXTERNAL_COLIBRI_PATH)/shared/kernel/colibri.cfg \
	$(BR2_EXTERNAL_COLIBRI_PATH)/shared/kernel/network.cfg
COLIBRI_KERNEL_OPTIONS = $(shell sed -n 's/^\(CONFIG_[A-Z0-9_]*\)=y$$/\1/p' $(COLIBRI_KERNEL_NEEDS))

define COLIBRI_LINUX_CONFIG_FIXUPS
	$(foreach option,$(COLIBRI_KERNEL_OPTIONS),
		$(call KCONFIG_ENABLE_OPT,$(option))
	)
endef

$(eval $(meson-package))

# "make dist" writes the hash of its tarball beside it.
COLIBRI_HASH_FILES += $(COLIBRI_SITE)/colibri.hash
