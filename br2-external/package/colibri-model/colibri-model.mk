################################################################################
#
# colibri-model
#
################################################################################

COLIBRI_MODEL_VERSION = 0.1.0
# The licence is what Buildroot fetches and checks; the models are checked below.
COLIBRI_MODEL_SITE = $(patsubst %/,%,$(dir $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_LICENSE_FILE))))
COLIBRI_MODEL_SITE_METHOD = file
COLIBRI_MODEL_SOURCE = $(notdir $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_LICENSE_FILE)))
COLIBRI_MODEL_LICENSE = $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_LICENSE))
COLIBRI_MODEL_LICENSE_FILES = $(COLIBRI_MODEL_SOURCE)
COLIBRI_MODEL_REDISTRIBUTE = NO
COLIBRI_MODEL_DEPENDENCIES = colibri

COLIBRI_MODEL_NAMES = $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_NAMES))
COLIBRI_MODEL_FILES = $(foreach name,$(COLIBRI_MODEL_NAMES),$(name).colibri $(name).golden.json)
COLIBRI_MODEL_FROM = $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_DIR))
COLIBRI_MODEL_SETTINGS = $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_SETTINGS))
COLIBRI_MODEL_CHECK_HASH = support/download/check-hash

define COLIBRI_MODEL_EXTRACT_CMDS
	cp -f "$(COLIBRI_MODEL_DL_DIR)/$(COLIBRI_MODEL_SOURCE)" $(@D)/
endef

# The files lie in $(@D)/models; hard links save copies of what is large.
ifeq ($(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_CONVERT)),)
define COLIBRI_MODEL_MAKE_FILES
	for f in $(COLIBRI_MODEL_FILES); do \
		test -f "$(COLIBRI_MODEL_FROM)/$${f}" || { \
			echo "colibri-model: $(COLIBRI_MODEL_FROM)/$${f} is missing: run \"make models\"," \
				"or set BR2_PACKAGE_COLIBRI_MODEL_DIR and _NAMES" >&2; \
			exit 1; \
		}; \
		cp -fL "$(COLIBRI_MODEL_FROM)/$${f}" "$(@D)/models/$${f}" || exit 1; \
	done
endef
else
COLIBRI_MODEL_CONVERTER = $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_CONVERTER))
COLIBRI_MODEL_MADE = $(@D)/models/$(firstword $(COLIBRI_MODEL_NAMES))
define COLIBRI_MODEL_MAKE_FILES
	$(COLIBRI_MODEL_CONVERTER) convert \
		"$(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_CONVERT))" \
		--output "$(COLIBRI_MODEL_MADE).colibri"
	$(COLIBRI_MODEL_CONVERTER) golden "$(COLIBRI_MODEL_MADE).colibri" \
		--prompt $(BR2_PACKAGE_COLIBRI_MODEL_PROMPT) \
		--output "$(COLIBRI_MODEL_MADE).golden.json"
endef
endif

define COLIBRI_MODEL_BUILD_CMDS
	rm -rf $(@D)/models
	mkdir -p $(@D)/models
	$(COLIBRI_MODEL_MAKE_FILES)
	test -f "$(COLIBRI_MODEL_HASHES)" || { \
		echo "colibri-model: no hash file $(COLIBRI_MODEL_HASHES)" >&2; \
		exit 1; \
	}
	for f in $(COLIBRI_MODEL_FILES); do \
		$(COLIBRI_MODEL_CHECK_HASH) "$(@D)/models/$${f}" "$${f}" \
			"$(COLIBRI_MODEL_HASHES)" || exit 1; \
	done
	chmod 0644 $(@D)/models/*
endef

COLIBRI_MODEL_HASHES = $(call qstrip,$(BR2_PACKAGE_COLIBRI_MODEL_HASH_FILE))

ifeq ($(BR2_PACKAGE_COLIBRI_MODEL_PARTITION),y)
COLIBRI_MODEL_DEPENDENCIES += host-erofs-utils
COLIBRI_MODEL_INSTALL_IMAGES = YES
COLIBRI_MODEL_PLACE = /models

# Not compressed and in whole blocks: read and mapped as it lies there. Ids and
# times are fixed, so the same models give the same bytes.
define COLIBRI_MODEL_INSTALL_IMAGES_CMDS
	env -u SOURCE_DATE_EPOCH $(HOST_DIR)/bin/mkfs.erofs --quiet --all-root -x-1 -T0 \
		-Uc011b410-0000-4000-8000-000000000001 -Enoinline_data \
		$(BINARIES_DIR)/models.erofs $(@D)/models
endef

define COLIBRI_MODEL_INSTALL_FILES
	mkdir -p $(TARGET_DIR)/models
endef

define COLIBRI_MODEL_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(COLIBRI_MODEL_PKGDIR)/S20colibri-models \
		$(TARGET_DIR)/etc/init.d/S20colibri-models
endef
else
COLIBRI_MODEL_PLACE = /usr/share/colibri
define COLIBRI_MODEL_INSTALL_FILES
	mkdir -p $(TARGET_DIR)/usr/share/colibri
	cp -f $(@D)/models/* $(TARGET_DIR)/usr/share/colibri/
endef
endif

ifneq ($(COLIBRI_MODEL_SETTINGS),)
define COLIBRI_MODEL_INSTALL_SETTINGS
	$(INSTALL) -D -m 0644 $(COLIBRI_MODEL_SETTINGS) \
		$(TARGET_DIR)/etc/colibri/colibri.conf
endef
else ifeq ($(BR2_PACKAGE_COLIBRI_SERVICE),y)
define COLIBRI_MODEL_INSTALL_SETTINGS
	$(SED) 's,^COLIBRI_MODEL=.*,COLIBRI_MODEL="$(COLIBRI_MODEL_PLACE)/$(firstword $(COLIBRI_MODEL_NAMES)).colibri",' \
		$(TARGET_DIR)/etc/colibri/colibri.conf
endef
endif

define COLIBRI_MODEL_INSTALL_TARGET_CMDS
	$(COLIBRI_MODEL_INSTALL_FILES)
	$(COLIBRI_MODEL_INSTALL_SETTINGS)
endef

$(eval $(generic-package))

COLIBRI_MODEL_HASH_FILES += $(COLIBRI_MODEL_HASHES)
