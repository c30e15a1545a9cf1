#!/usr/bin/env bash
# Builds the images of the daemons; --help has the rest.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

usage() {
  cat <<'TEXT'
build.sh [OPTIONS] [sender] [receiver]     both if none is named

Builds OCI images from Debian packages, with buildah, or with docker where there is no buildah.

  --packages DIR   where deltawire-*.deb are; default: build/package/packages, which `./run package`
                   fills
  --base IMAGE     the base instead of docker.io/library/debian:bookworm-slim
  --own-base       makes the base with mmdebstrap, from this machine's sources of Debian 12, where no
                   registry can be reached; as root, with buildah
  --tag TAG        default: the packages' version
  --prefix PREFIX  before the images' names, e.g. registry.example/rl/
  --tool TOOL      buildah or docker
  --archive DIR    also writes each image to DIR/deltawire-sender.tar, ... (with buildah: an OCI
                   archive)
TEXT
}

say() { printf '== %s\n' "$*"; }
die() {
  printf 'build.sh: %s\n' "$*" >&2
  exit 1
}

# stage CONTEXT: what a build sees; packages are there without their versions.
stage() {
  local context=$1 name found
  mkdir "$context/packages"
  cp "$here/Containerfile" "$context"
  cp "$here/.containerignore" "$context"
  cp "$here/.containerignore" "$context/.dockerignore"
  for name in "${daemons[@]/#/deltawire-}" deltawire-cli; do
    mapfile -t found < <(compgen -G "$packages/${name}_*.deb")
    ((${#found[@]} == 1)) ||
      die "$packages has ${#found[@]} packages $name, and 1 is wanted; \`./run package\` makes them" \
        "(--packages DIR names others)"
    cp "${found[0]}" "$context/packages/$name.deb"
  done
}

# What debian:bookworm-slim is, nearly, in the image localhost/deltawire-base.
make_base() {
  local root=$1/base.tar container sources
  command -v mmdebstrap >/dev/null || die "--own-base wants mmdebstrap: apt-get install mmdebstrap"
  mapfile -t sources < <(compgen -G '/etc/apt/sources.list' || true
    compgen -G '/etc/apt/sources.list.d/*.list' || true
    compgen -G '/etc/apt/sources.list.d/*.sources' || true)
  say "a base from Debian's packages"
  mmdebstrap --quiet --variant=minbase --include=passwd \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$root" "${sources[@]}"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$root" / >/dev/null
  buildah commit --quiet --rm "$container" localhost/deltawire-base >/dev/null
}

build() {
  local daemon=$1 context=$2 image="${prefix}deltawire-$1:$tag"
  local arguments=(--build-arg "BASE=$base" --build-arg "VERSION=$version" --target "$daemon" -t "$image"
    -f "$context/Containerfile" "$context")
  if [[ $tool == buildah ]]; then
    buildah build --quiet --layers=false "${arguments[@]}" >/dev/null
    [[ -z $archive ]] ||
      buildah push --quiet "$image" "oci-archive:$archive/deltawire-$daemon.tar:$image"
  else
    DOCKER_BUILDKIT=1 docker build --quiet "${arguments[@]}" >/dev/null
    [[ -z $archive ]] || docker save -o "$archive/deltawire-$daemon.tar" "$image"
  fi
  say "$image"
}

packages=$(realpath -m "$here/../../build/package/packages")
base=docker.io/library/debian:bookworm-slim own_base=
tag='' prefix='' tool='' archive='' daemons=()
while (($#)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --own-base) own_base=1 ;;
    --packages | --base | --tag | --prefix | --tool | --archive)
      (($# > 1)) || die "$1 wants a value; --help lists the options"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    sender | receiver) daemons+=("$1") ;;
    *) die "there is no $1; --help lists the options" ;;
  esac
  shift
done
((${#daemons[@]})) || daemons=(sender receiver)
[[ -d $packages ]] ||
  die "there is no $packages; \`./run package\` makes it (--packages DIR names another)"
packages=$(cd "$packages" && pwd)
if [[ -z $tool ]]; then
  for tool in buildah docker none; do
    ! command -v "$tool" >/dev/null || break
  done
fi
[[ $tool != none ]] || die "neither buildah nor docker is here: apt-get install buildah"
[[ $tool == buildah || $tool == docker ]] || die "--tool is buildah or docker, not $tool"
command -v "$tool" >/dev/null || die "$tool is not here: apt-get install $tool"
[[ $tool != docker ]] || docker info >/dev/null 2>&1 ||
  die "docker is here, but its daemon does not answer; start it, or install buildah, which needs none"
# buildah runs an image's steps by one of these, which Debian only recommends beside it.
[[ $tool != buildah ]] || command -v runc >/dev/null || command -v crun >/dev/null ||
  die "buildah is here, but nothing that runs containers: apt-get install runc"
if [[ -n $own_base ]]; then
  [[ $tool == buildah ]] || die "--own-base works with buildah only"
  ((EUID == 0)) || die "--own-base wants root"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage "$work"
version=$(dpkg-deb --field "$work/packages/deltawire-${daemons[0]}.deb" Version)
if [[ -z $tag ]]; then
  tag=$version
  tag=${tag//[^A-Za-z0-9_.-]/-} # Debian's "+" and "~" are not for tags
fi
if [[ -n $own_base ]]; then
  make_base "$work"
  base=localhost/deltawire-base
  rm "$work/base.tar"
fi
[[ -z $archive ]] || mkdir -p "$archive"
for daemon in "${daemons[@]}"; do
  build "$daemon" "$work"
done
