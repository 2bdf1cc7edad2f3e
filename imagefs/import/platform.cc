#include "platform.h"

#include <sys/utsname.h>

#include "imagefs/image_archive.h"

namespace esker {
namespace import_internal {
namespace {

// v7 -> 7; 0 if it is none.
int VariantNumber(std::string_view variant) {
  if (variant.size() != 2 || variant[0] != 'v' || variant[1] < '1' || variant[1] > '9') return 0;
  return variant[1] - '0';
}

}  // namespace

std::string Platform::ToString() const {
  return os + "/" + architecture + (variant.empty() ? "" : "/" + variant);
}

Result<Platform> ParsePlatform(std::string_view text) {
  Platform out;
  std::string* parts[] = {&out.os, &out.architecture, &out.variant};
  size_t part = 0;
  for (std::string_view rest = text;; ++part) {
    const size_t slash = rest.find('/');
    if (part == 3 || rest.substr(0, slash).empty()) {
      return InvalidArgumentError("platform \"" + std::string(text) +
                                  "\" is not of the form os/architecture[/variant]");
    }
    *parts[part] = rest.substr(0, slash);
    if (slash == rest.npos) break;
    rest = rest.substr(slash + 1);
  }
  if (part == 0) {
    return InvalidArgumentError("platform \"" + std::string(text) +
                                "\" is not of the form os/architecture[/variant]");
  }
  return Normalise(std::move(out));
}

Platform Normalise(Platform platform) {
  if (platform.architecture == "x86_64" || platform.architecture == "x86-64") {
    platform.architecture = "amd64";
  } else if (platform.architecture == "aarch64") {
    platform.architecture = "arm64";
  } else if (platform.architecture == "armhf") {
    platform.architecture = "arm";
  }
  const std::string_view usual = platform.architecture == "amd64"   ? "v1"
                                 : platform.architecture == "arm64" ? "v8"
                                 : platform.architecture == "arm"   ? "v7"
                                                                    : "";
  if (platform.variant == usual) platform.variant.clear();
  return platform;
}

int PlatformRank(const Platform& wanted, const Platform& offered) {
  if (wanted.os != offered.os || wanted.architecture != offered.architecture) return 0;
  if (wanted.variant == offered.variant) return 100;
  if (wanted.architecture == "arm") {
    const int want = wanted.variant.empty() ? 7 : VariantNumber(wanted.variant);
    const int have = offered.variant.empty() ? 7 : VariantNumber(offered.variant);
    return have != 0 && have <= want ? 10 + have : 0;
  }
  return wanted.variant.empty() && wanted.architecture != "amd64" ? 1 : 0;
}

}  // namespace import_internal

std::string MachinePlatform() {
  struct utsname name = {};
  (void)::uname(&name);
  import_internal::Platform platform = {"linux", name.machine, ""};
  if (platform.architecture == "armv7l") platform.architecture = "arm";
  if (platform.architecture == "i686") platform.architecture = "386";
  return import_internal::Normalise(std::move(platform)).ToString();
}

}  // namespace esker
