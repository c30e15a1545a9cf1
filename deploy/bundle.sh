#!/usr/bin/env bash
# Packs the programs of a build tree into a tarball that runs wherever glibc is as new as here:
# daemons, command line, unit tests, benchmarks, and every shared library except glibc's own and
# NVIDIA's driver.
#   deploy/bundle.sh [BUILD_DIR [TARBALL]]     default: build/release, BUILD_DIR/deltawire.tar.gz
# Nothing is built: the programs that are in BUILD_DIR/bin go in. run-tests.sh in the tarball needs
# neither CMake nor this tree; a build without unit tests, such as `package`, gives a tarball without
# it. Files have the time SOURCE_DATE_EPOCH, or the commit's.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath -e "${1:-$root/build/release}")
tarball=$(realpath -m "${2:-$build/deltawire.tar.gz}")
readonly root build tarball
readonly name=deltawire

die() {
  printf 'bundle: %s\n' "$*" >&2
  exit 1
}
command -v patchelf >/dev/null || die "patchelf is missing: apt-get install patchelf"
[[ -d $build/bin ]] || die "$build has no bin: build it first (./run build release)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readonly stage=$work/$name
mkdir -p "$stage/bin" "$stage/lib"

is_program() { [[ -f $1 && -x $1 && $(head -c 4 "$1") == $'\x7fELF' ]]; }

# Whether a library is left out, because the machine that runs the bundle must bring its own: the
# loader, glibc, and what comes with NVIDIA's driver.
stays_behind() {
  case $1 in
    ld-linux*.so* | linux-vdso.so* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | \
      libpthread.so.* | libresolv.so.* | libutil.so.* | libmvec.so.* | libanl.so.* | libnss_*) return 0 ;;
    libcuda.so* | libnvidia-*) return 0 ;;
  esac
  return 1
}

# Lists the libraries of a program, including those that its libraries need.
libraries() { ldd "$1" | sed -n 's/^[[:space:]]*[^ ]* => \(\/[^ ]*\) (.*/\1/p'; }

# add FILE TO RPATH: copies FILE to TO without symbols, and makes it look for libraries in RPATH.
add() {
  strip --strip-unneeded -o "$2" "$1"
  chmod 755 "$2"
  patchelf --set-rpath "$3" "$2"
}

declare -A origin=()
programs=()
for file in "$build"/bin/*; do
  is_program "$file" || continue
  programs+=("$file")
done
((${#programs[@]})) || die "$build/bin holds no program"
for file in "${programs[@]}"; do
  ! ldd "$file" | grep 'not found' >&2 || die "$file: libraries are missing here already"
  # shellcheck disable=SC2016 # the loader expands it
  add "$file" "$stage/bin/$(basename "$file")" '$ORIGIN/../lib'
  while read -r library; do
    base=$(basename "$library")
    if stays_behind "$base" || [[ -e $stage/lib/$base ]]; then continue; fi
    library=$(realpath -e "$library")
    origin[$library]=1
    # shellcheck disable=SC2016
    add "$library" "$stage/lib/$base" '$ORIGIN'
  done < <(libraries "$file")
done

cp -r "$root/configs" "$root/docs" "$root/LICENSE" "$root/NOTICE" "$stage/"

# The licenses of the libraries, by the Debian package that each came from.
mkdir "$stage/licenses"
for library in "${!origin[@]}"; do
  # A file below /lib is known to dpkg by that name, though /lib leads to /usr/lib.
  package=$(dpkg-query -S "$library" 2>/dev/null || dpkg-query -S "${library#/usr}" 2>/dev/null) || {
    printf 'bundle: no Debian package owns %s; add its license by hand\n' "$library" >&2
    continue
  }
  package=${package%%:*}
  [[ -e $stage/licenses/$package.copyright ]] ||
    cp "/usr/share/doc/$package/copyright" "$stage/licenses/$package.copyright"
done

add_tests() {
  # Tests look for files under this tree's own path, which run-tests.sh makes lead to the bundle.
  mkdir "$stage/tests"
  cp -r "$root/tests/golden" "$stage/tests/"
  if [[ $build == "$root"/* ]]; then
    mkdir -p "$stage/${build#"$root"/}"
    ln -sr "$stage/bin" "$stage/${build#"$root"/}/bin"
  fi
  printf '%s\n' "$root" >"$stage/source-path"
  # Lists the programs that are a unit test by themselves, except those that were not built.
  ctest --test-dir "$build" -L '^unit$' --show-only=json-v1 | python3 -c '
import json, os, sys
programs = {t["command"][0] for t in json.load(sys.stdin)["tests"] if t.get("command")}
bin_dir = sys.argv[1]
print(*sorted(os.path.basename(p) for p in programs
              if os.path.dirname(p) == bin_dir and p.endswith("_test") and os.path.exists(p)),
      sep="\n")' "$build/bin" >"$stage/unit-tests"
  cp "$root/deploy/bundle-run-tests.sh" "$stage/run-tests.sh"
  chmod 755 "$stage/run-tests.sh"
}
[[ ! -f $build/tests/CTestTestfile.cmake ]] || add_tests

mebibytes() { awk -v bytes="$1" 'BEGIN {printf "%.1f", bytes / 1048576}'; }
mkdir -p "$(dirname "$tarball")"
made=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
tar -C "$work" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw --mtime="@$made" --sort=name \
  --format=gnu -c "$name" | gzip -9n >"$tarball"
newest=$(objdump -T "$stage"/bin/* "$stage"/lib/* 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu |
  tail -n 1)
printf '%s: %d programs, %d libraries, %s MiB (%s MiB unpacked); needs %s\n' "$tarball" \
  "$(find "$stage/bin" -type f | wc -l)" "$(find "$stage/lib" -type f | wc -l)" \
  "$(mebibytes "$(stat -c %s "$tarball")")" "$(mebibytes "$(du -sb "$stage" | cut -f 1)")" \
  "${newest/_/ }"
