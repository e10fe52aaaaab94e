#!/usr/bin/env bash
# Installs the system packages that are missing, where this user may; otherwise says which command would.
set -euo pipefail

packages=()
ldconfig -p | grep -q 'libEGL\.so\.1' || packages+=(libegl1)
ldconfig -p | grep -q 'libGL\.so\.1' || packages+=(libgl1)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || packages+=(chromium)
command -v cc >/dev/null || packages+=(gcc libc6-dev)
[ -e /usr/include/linux/input.h ] || packages+=(linux-libc-dev)
[ ${#packages[@]} -eq 0 ] && exit 0

install="apt-get install -y --no-install-recommends ${packages[*]}"
if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
  apt-get update -qq && $install -qq
elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then
  sudo apt-get update -qq && sudo $install -qq
else
  echo "Missing system packages: ${packages[*]}. Install them: sudo $install" >&2
fi
