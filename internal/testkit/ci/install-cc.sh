#!/bin/sh
# Makes sure that "cc" compiles and links, by installing gcc on Debian and its like when we are root.
set -eu
works() {
	dir=$(mktemp -d)
	echo 'int main(void) { return 0; }' >"$dir/t.c"
	status=0
	cc -include stdlib.h -o "$dir/t" "$dir/t.c" >/dev/null 2>&1 || status=1
	rm -r "$dir"
	return $status
}
works && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "No working C compiler (cc). Install gcc and the C library's headers:" >&2
	echo "    Debian, Ubuntu: apt-get install gcc libc6-dev      Fedora: dnf install gcc glibc-devel" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
install="apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends gcc libc6-dev"
echo "+ $install"
$install >/dev/null 2>&1 || { apt-get -q update >/dev/null; $install >/dev/null; }
works
