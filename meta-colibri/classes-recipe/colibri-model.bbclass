# SPDX-License-Identifier: MIT
#
# A model as a package: the .colibri file, its golden results, its provenance.
#
#   COLIBRI_MODEL         name of the model: COLIBRI_MODEL.colibri, COLIBRI_MODEL.golden.json
#   COLIBRI_MODEL_ROOT    root hash of the file, 64 hexadecimal digits; a build that gets another one fails
#   COLIBRI_MODEL_DIR     a folder with a finished file and its golden results, for recipes without
#   COLIBRI_MODEL_RECIPE  a recipe of configs/models/ (below COLIBRI_REPOSITORY), converted here: the same
#                         bytes on every machine. Sources that it names are the recipe's SRC_URI.
#   COLIBRI_GOLDEN        prompts of the golden results, as options of `colibri golden`
#
# The file is verified (every hash, padding byte and weight) before it is packaged, its licence is
# compared with LICENSE, and the SPDX document of the package names it as an AI package.

require recipes-colibri/colibri/colibri-models.inc

inherit allarch python3native

COLIBRI_MODEL_DIR ?= ""
COLIBRI_MODEL_ROOT ?= ""
COLIBRI_MODEL_RECIPE ?= ""
# The folder is set for all recipes at once (local.conf): one that names its conversion does not look there.
COLIBRI_MODEL_FINISHED = "${@'' if d.getVar('COLIBRI_MODEL_RECIPE') else d.getVar('COLIBRI_MODEL_DIR')}"
COLIBRI_GOLDEN ?= "--prompt=Hello --tokens=16"
# Licence of a model that carries none, as SPDX words; a model that carries one must agree with LICENSE.
COLIBRI_MODEL_LICENSE ?= "${LICENSE}"

INHIBIT_DEFAULT_DEPS = "1"
# Only a conversion computes.
DEPENDS += "${@'' if d.getVar('COLIBRI_MODEL_FINISHED') else 'python3-numpy-native'}"

FILESEXTRAPATHS:prepend := "${COLIBRI_REPOSITORY}:"
FILESEXTRAPATHS:prepend = "${COLIBRI_MODEL_FINISHED}:"
SRC_URI += "\
    file://engine/colibri \
    file://engine/VERSION \
    file://LICENSE \
    ${@'file://${COLIBRI_MODEL}.colibri file://${COLIBRI_MODEL}.golden.json' if d.getVar('COLIBRI_MODEL_FINISHED') else 'file://${COLIBRI_MODEL_RECIPE} file://configs/models/licenses'} \
"
S = "${UNPACKDIR}"

COLIBRI_TOOL = "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=${S}/engine nativepython3 -m colibri"

python () {
    if not d.getVar("COLIBRI_MODEL_DIR") and not d.getVar("COLIBRI_MODEL_RECIPE"):
        raise bb.parse.SkipRecipe("set COLIBRI_MODEL_DIR to a folder with %s.colibri" % d.getVar("COLIBRI_MODEL"))
}

do_compile() {
    rm -rf ${B}/out
    mkdir -p ${B}/out
    model=${B}/out/${COLIBRI_MODEL}.colibri
    golden=${B}/out/${COLIBRI_MODEL}.golden.json
    if [ -n "${COLIBRI_MODEL_FINISHED}" ]; then
        cp ${S}/${COLIBRI_MODEL}.colibri ${S}/${COLIBRI_MODEL}.golden.json ${B}/out
        ${COLIBRI_TOOL} verify $model
    else
        ${COLIBRI_TOOL} convert ${S}/${COLIBRI_MODEL_RECIPE} -o $model
        ${COLIBRI_TOOL} verify $model
        ${COLIBRI_TOOL} golden $model ${COLIBRI_GOLDEN} -o $golden
    fi
    ${COLIBRI_TOOL} inspect $model --json > ${B}/facts.json
}

python do_check_model() {
    import json

    out = d.expand("${B}/out/${COLIBRI_MODEL}")
    with open(d.expand("${B}/facts.json")) as file:
        facts = json.load(file)
    root, wanted = facts["file"]["root"], d.getVar("COLIBRI_MODEL_ROOT")
    if root != wanted:
        bb.fatal("%s.colibri has the root hash %s, COLIBRI_MODEL_ROOT is '%s': take the right file, or write its hash into the recipe"
                 % (out, root, wanted))
    with open(out + ".golden.json") as file:
        golden = json.load(file)["root"]
    if golden != root:
        bb.fatal("%s.golden.json has results of the model %s, not of %s" % (out, golden, root))
    carried = (facts["provenance"].get("license") or {}).get("id")
    if carried and carried != d.getVar("LICENSE"):
        bb.fatal("the model carries the licence %s, LICENSE is '%s'" % (carried, d.getVar("LICENSE")))
    with open(out + ".provenance.json", "w") as file:
        json.dump({"root": root, **facts["provenance"]}, file, indent=1, sort_keys=True)
        file.write("\n")
}
addtask check_model after do_compile before do_install

do_install() {
    install -d ${D}${COLIBRI_MODELDIR}
    install -m 0644 ${B}/out/${COLIBRI_MODEL}.colibri ${B}/out/${COLIBRI_MODEL}.golden.json \
        ${B}/out/${COLIBRI_MODEL}.provenance.json ${D}${COLIBRI_MODELDIR}
}

# colibri-settings plans for the file.
SYSROOT_DIRS += "${COLIBRI_MODELDIR}"

PACKAGES = "${PN}"
FILES:${PN} = "${COLIBRI_MODELDIR}"

# ---- SPDX ---------------------------------------------------------------------------------------
# create-spdx describes the package; this adds the model that is in it: an AI package with the hash of
# its file and its root hash, what it was made from (a package for each source with its digest), and its
# licence. Runs inside do_create_spdx, where the document of the package is still open.
python colibri_spdx_model() {
    import json
    from pathlib import Path
    import oe.sbom30
    import oe.spdx30

    staged = d.getVar("PKGDEST")
    folder = Path(staged + "/" + d.getVar("PN") + d.getVar("COLIBRI_MODELDIR"))
    name = d.getVar("COLIBRI_MODEL")
    facts = json.loads((folder / (name + ".provenance.json")).read_text())

    def sha256(value):
        return oe.spdx30.Hash(algorithm=oe.spdx30.HashAlgorithm.sha256, hashValue=value)

    def entry(key, value):
        return oe.spdx30.DictionaryEntry(key=key, value=str(value))

    pkg = d.getVar("PKG:" + d.getVar("PN")) or d.getVar("PN")
    deploy = Path(d.getVar("SPDXDEPLOY"))
    path = oe.sbom30.jsonld_arch_path(
        d, d.getVar("SSTATE_PKGARCH"), "packages-staging", "package-" + pkg, deploydir=deploy)
    objset = oe.sbom30.load_jsonld(d, path, required=True)
    package = objset.find_filter(
        oe.spdx30.software_Package, software_primaryPurpose=oe.spdx30.software_SoftwarePurpose.install)
    source = facts.get("source", {})
    recipe = facts.get("recipe", {})
    info = objset.doc.creationInfo
    model = objset.add(oe.spdx30.ai_AIPackage(
        _id=objset.new_spdxid("model", name),
        creationInfo=info,
        name=name,
        summary="Mixture-of-Experts language model in the .colibri format",
        software_packageVersion=d.getVar("PV"),
        software_primaryPurpose=oe.spdx30.software_SoftwarePurpose.model,
        verifiedUsing=[sha256(bb.utils.sha256_file(str(folder / (name + ".colibri"))))],
        ai_typeOfModel=["transformer decoder, mixture of experts"],
        ai_informationAboutTraining="made by %s from a source of the kind %s" % (facts["converter"], source.get("kind")),
        ai_hyperparameter=[entry("root", facts["root"])]
        + [entry(key, value) for key, value in sorted(facts.get("dtypes", {}).items())],
        comment="provenance: " + json.dumps({key: value for key, value in facts.items() if key != "license"}, sort_keys=True),
    ))
    objset.new_relationship([package], oe.spdx30.RelationshipType.contains, [model])

    sources = [(file, digest) for file, digest in sorted(source.get("sha256", {}).items())]
    if recipe:
        sources.append((recipe["file"], recipe["sha256"]))
    parents = [
        objset.add(oe.spdx30.software_Package(
            _id=objset.new_spdxid("model-source", file), creationInfo=info, name=file,
            software_primaryPurpose=oe.spdx30.software_SoftwarePurpose.source, verifiedUsing=[sha256(digest)]))
        for file, digest in sources
    ]
    if parents:
        objset.new_relationship([model], oe.spdx30.RelationshipType.descendantOf, parents)

    # The licence of the recipe is in the document of the build: link the same one.
    for relation in objset.foreach_filter(
            oe.spdx30.Relationship, relationshipType=oe.spdx30.RelationshipType.hasDeclaredLicense):
        if package in relation.from_:
            objset.new_relationship([model], oe.spdx30.RelationshipType.hasDeclaredLicense, list(relation.to))
            break

    # Like the package's own document: the final one is written by a later task.
    oe.sbom30.write_recipe_jsonld_doc(
        d, objset, "packages-staging", deploy, create_spdx_id_links=False)
}

# Behind the task's own function, in front of that of sstate, which takes the folder away. Without
# create-spdx there is no such task, and this does nothing.
do_create_spdx[postfuncs] += "colibri_spdx_model"
SPDX_PROFILES:append = " ai"
