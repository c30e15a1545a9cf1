#!/usr/bin/env bash
# Makes a release in build/release-VERSION from a clean tree: `./run release`. README.md beside this
# file describes the steps.
#   deploy/release/release.sh [OPTION...] [PART...]     parts: packages wheel tarball images
#     --rehearsal     even if CHANGELOG.md does not date the version yet
#     --own-base      images on a base of Debian's packages, where no registry answers
#     --twice         makes all of it again in another directory, and names the files that differ
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# shellcheck source=/dev/null
. tests/support/pythons.sh

readonly all_parts=(packages wheel tarball images)
parts=() rehearsal=() own_base=() twice=''
while (($#)); do
  case $1 in
    --rehearsal) rehearsal=(--rehearsal) ;;
    --own-base) own_base=(--own-base) ;;
    --twice) twice=1 ;;
    -*) die "unknown option $1" ;;
    *) parts+=("$1") ;;
  esac
  shift
done
((${#parts[@]})) || parts=("${all_parts[@]}")

wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

dirty=$(git status --porcelain | head -n 5)
[[ -z $dirty ]] || die "the tree is not clean; commit or remove:"$'\n'"$dirty"
version=$(sed -n 's/^project(deltawire VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[[ -n ${rehearsal[*]} ]] || grep -qE "^## $version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" CHANGELOG.md ||
  die "CHANGELOG.md has no '## $version (YEAR-MONTH-DAY)'; --rehearsal goes without"
for part in "${parts[@]}"; do
  [[ " ${all_parts[*]} " == *" $part "* ]] ||
    die "there is no part $part; there are: ${all_parts[*]}"
done
! wanted images || wanted packages ||
  die "images are made of the packages: ./run release packages ${parts[*]}"

[[ -n ${DELTAWIRE_NO_INSTALL:-} ]] || deploy/install_packages.sh deploy/apt-packages.txt
need_wheel_python
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
folder=build/release-$version
rm -rf "$folder"
mkdir -p "$folder"

if wanted packages; then
  deploy/package.sh
  cp build/package/packages/*.deb "$folder"
fi
if wanted wheel; then
  deploy/wheel/wheel.sh
  cp build/wheel/deltawire-*.whl "$folder"
fi
if wanted tarball; then
  deploy/tarball.sh "$folder/deltawire-$version-linux-x86_64.tar.gz"
fi
if wanted images && ! command -v buildah >/dev/null; then
  say "no images: there is no buildah here (apt-get install buildah)"
elif wanted images; then
  rm -rf build/images
  deploy/containers/build.sh "${own_base[@]}" --packages "$folder" --archive build/images \
    >build/images.log 2>&1 || {
    tail -n 20 build/images.log >&2
    die "making the images failed; the whole log: build/images.log (--own-base needs no registry)"
  }
  cp build/images/*.tar "$folder"
fi

"$DELTAWIRE_WHEEL_PYTHON" -B deploy/release/sbom.py "$folder" "$version"
(cd "$folder" && LC_ALL=C && sha256sum -- * >SHA256SUMS)
say "$folder: $(wc -l <"$folder/SHA256SUMS") files of commit $(git rev-parse --short HEAD)"
[[ -n $twice ]] || exit 0

# The same release from the same commit in another directory, without what ccache has kept, and by the
# same Pythons. Images are left out: they are never the same twice.
readonly images='/ deltawire-[a-z]*\.tar$/d'
parts_again=()
for part in "${parts[@]}"; do
  [[ $part == images ]] || parts_again+=("$part")
done
python=python3
[[ ! -x .venv/bin/python3 ]] || python=$PWD/.venv/bin/python3
work=$(mktemp -d "${TMPDIR:-/tmp}/deltawire-again-XXXXXX")
trap 'rm -rf "$work"' EXIT
readonly clone=$work/a/path-of-another-length
git clone -q . "$clone"
say "the same again in $work"
env CCACHE_DISABLE=1 DELTAWIRE_PYTHON="${DELTAWIRE_PYTHON:-$python}" \
  "$clone/run" release "${rehearsal[@]}" "${parts_again[@]}"
diff <(sed "$images" "$folder/SHA256SUMS") "$clone/$folder/SHA256SUMS" || {
  trap - EXIT
  die "these files are not the same in $folder and $work"
}
say "both are the same, byte for byte: $(sed "$images" "$folder/SHA256SUMS" | wc -l) files"
