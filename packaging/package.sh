#!/usr/bin/env bash
# Makes packages of a directory that host/dist.sh has filled.
#
#   packaging/package.sh BUILD PLUGINS OUT
#   packaging/package.sh --check                checks that the programs that it calls are installed
#
#   OUT/corral-VERSION-MACHINE.tar.xz           for a prefix such as /usr/local: program, plugins, Python packages,
#                                               completions, man pages, units, documents, licenses, bill of materials
#   OUT/corral-VERSION-MACHINE-symbols.tar.xz   symbols and debug information: backtraces name functions if these files
#                                               lie beside the program, in lib/corral
#   OUT/corral_VERSION_ARCHITECTURE.deb         the same tree under /usr, where dpkg-deb exists
#   OUT/SHA256SUMS
#
# PLUGINS is the directory of built plugins.
set -euo pipefail

die() { echo "packaging/package.sh: $*" >&2; exit 1; }

for program in objcopy objdump xz python3; do
  command -v "$program" >/dev/null ||
    die "$program is missing; install binutils, xz and Python, on Debian: apt-get install binutils xz-utils python3"
done
python3 -c 'import tomllib' 2>/dev/null ||
  die "python3 is $(python3 --version 2>&1), which is too old; put Python 3.11 or later first in PATH"
[ "$*" != --check ] || exit 0
[ $# -eq 3 ] || die "expected BUILD PLUGINS OUT"
build=$(cd "$1" && pwd)
plugins=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
cd "$(dirname "$0")/.."
[ -x "$build/corral" ] || die "there is no $build/corral; run host/dist.sh first"

readonly shipped_plugins="generate openai ollama chatml min-p mirostat hello chat sessions corral-remote corral-remote-sync corral-mock"
readonly max_program_mib=60

version=$("$build/corral" --version | cut -d' ' -f2)
machine=$(uname -m)
name=corral-$version-$machine
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/$name
symbols=$scratch/$name-symbols
lib=$tree/lib/corral
doc=$tree/share/doc/corral
mkdir -p "$lib" "$tree/bin" "$tree/lib/systemd/system" "$tree/share/corral/"{plugins,models,python} "$doc" "$symbols"

cd "$build"
shopt -s nullglob
for file in corral lib{llama,mtmd,ggml}* backends/libggml-*; do
  [ "${file%.debug}" = "$file" ] || continue
  mkdir -p "$lib/$(dirname "$file")" "$symbols/$(dirname "$file")"
  cp -P "$file" "$lib/$file"
  [ -L "$file" ] || cp "$file.debug" "$symbols/$file.debug"
done
cd - >/dev/null
size=$(stat -c %s "$lib/corral")
[ "$size" -le $((max_program_mib << 20)) ] ||
  die "the program has $((size >> 20)) MiB, more than $max_program_mib; 'nm -CS --size-sort corral.debug' shows what is large"
ln -s ../lib/corral/corral "$tree/bin/corral"

for plugin in $shipped_plugins; do
  cp "$plugins/$plugin.wasm" "$tree/share/corral/plugins/"
  [ ! -f "$plugins/$plugin.toml" ] || cp "$plugins/$plugin.toml" "$tree/share/corral/plugins/"
done
packaging/wheel.py "$tree/share/corral/python" >&2
cp models/tiny/tiny.gguf "$tree/share/corral/models/"
cp packaging/corral.{service,socket} "$tree/lib/systemd/system/"
cp packaging/corral.default packaging/server.toml "$tree/share/corral/"

bin=$lib/corral
mkdir -p "$tree/share/"{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
"$bin" config schema >"$tree/share/corral/server.schema.json"
"$bin" completions bash >"$tree/share/bash-completion/completions/corral"
"$bin" completions zsh >"$tree/share/zsh/site-functions/_corral"
"$bin" completions fish >"$tree/share/fish/vendor_completions.d/corral.fish"
"$bin" man-pages "$tree/share/man/man1"
gzip -n9 "$tree"/share/man/man1/*
cp -r README.md CHANGELOG.md LICENSE docs "$doc/"
packaging/licenses.py "$doc"

# The same files give the same archive: sorted, without owners, with the date of the commit.
date=@$(git log -1 --format=%ct 2>/dev/null || date +%s)
pack() {
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -C "$scratch" "$1" | xz -T0 -6 >"$out/$1.tar.xz"
}
rm -f "$out"/corral[-_]*.{tar.xz,deb} "$out/SHA256SUMS"
pack "$name"
pack "$name-symbols"

if command -v dpkg-deb >/dev/null; then
  architecture=$(dpkg --print-architecture)
  root=$scratch/deb
  mkdir -p "$root/DEBIAN" "$root/etc/default"
  cp -a "$tree" "$root/usr"
  mv "$root/usr/share/corral/corral.default" "$root/etc/default/corral"
  gzip -n9 "$root/usr/share/doc/corral/CHANGELOG.md" "$root/usr/share/doc/corral/THIRD-PARTY-LICENSES.txt"
  mv "$root/usr/share/doc/corral/LICENSE" "$root/usr/share/doc/corral/copyright"
  echo /etc/default/corral >"$root/DEBIAN/conffiles"
  # The oldest C library that the built files accept.
  libc=$(objdump -T "$lib"/corral "$lib"/*.so* "$lib"/backends/*.so 2>/dev/null |
    grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -n1 | cut -d_ -f2)
  cat >"$root/DEBIAN/control" <<CONTROL
Package: corral
Version: $version
Architecture: $architecture
Maintainer: The Corral authors <corral@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $libc), libstdc++6, libgcc-s1
Recommends: ca-certificates
Suggests: systemd
Section: net
Priority: optional
Description: serves language models to sandboxed WebAssembly plugins
 Corral loads models in the process and runs plugins beside them. The service
 corral.service serves the demo model until /etc/default/corral names another.
CONTROL
  # dpkg does not tell systemd of new units, and restarts nothing. A running service goes on with the old program until
  # an administrator restarts it; its socket stays open meanwhile.
  cat >"$root/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
SCRIPT
  cat >"$root/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl stop corral.socket corral.service || true
  systemctl disable corral.socket corral.service || true
fi
SCRIPT
  cp "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
  chmod 755 "$root/DEBIAN/"{postinst,prerm,postrm}
  SOURCE_DATE_EPOCH=${date#@} dpkg-deb --root-owner-group -Zxz --build "$root" "$out/corral_${version}_$architecture.deb" >&2
fi

cd "$out"
packages=(corral[-_]*.{tar.xz,deb})
[ "${#packages[@]}" -gt 0 ] || die "no package was made"
sha256sum "${packages[@]}" >SHA256SUMS
cat SHA256SUMS
