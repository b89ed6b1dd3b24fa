################################################################################
#
# python-colibri
#
################################################################################

PYTHON_COLIBRI_VERSION = 0.1.0
PYTHON_COLIBRI_SOURCE = colibri-$(PYTHON_COLIBRI_VERSION).tar.gz
PYTHON_COLIBRI_SITE = $(COLIBRI_SITE)
PYTHON_COLIBRI_SITE_METHOD = file
PYTHON_COLIBRI_DL_SUBDIR = colibri
PYTHON_COLIBRI_LICENSE = MIT
PYTHON_COLIBRI_LICENSE_FILES = LICENSE
PYTHON_COLIBRI_DEPENDENCIES = python3 colibri

# The package brings a library of its own, built like that of the command.
PYTHON_COLIBRI_CONF_ENV = \
	_PYTHON_SYSCONFIGDATA_NAME=$(PKG_PYTHON_SYSCONFIGDATA_NAME) \
	PYTHONPATH="$(PYTHON3_PATH)"
PYTHON_COLIBRI_CONF_OPTS = \
	-Doptimization=2 \
	-Dpython=true \
	-Dtests=false \
	-Dtools=false \
	-Dunits=none \
	$(filter -Dforced=% -Dsignatures=% -Dpublic_key=%,$(COLIBRI_CONF_OPTS))

define PYTHON_COLIBRI_INSTALL_COMMAND
	$(INSTALL) -D -m 0755 $(PYTHON_COLIBRI_PKGDIR)/colibri.py \
		$(TARGET_DIR)/usr/bin/colibri
endef
PYTHON_COLIBRI_POST_INSTALL_TARGET_HOOKS += PYTHON_COLIBRI_INSTALL_COMMAND

$(eval $(meson-package))

PYTHON_COLIBRI_HASH_FILES += $(COLIBRI_SITE)/colibri.hash
