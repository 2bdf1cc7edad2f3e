#include "xattr_policy.h"

namespace esker::import_internal {
namespace {

bool IsHostBound(std::string_view name) {
  return name == "security.selinux" || name.starts_with("security.SMACK64") ||
         name == "security.ima" || name == "security.evm" || name == "security.apparmor" ||
         // Our own mark (imagefs/implicit_directories.h): an entry describes its directory.
         name == "trusted.esker.implicit";
}

}  // namespace

XattrVerdict JudgeTarXattr(std::string_view name) {
  if (IsHostBound(name)) return XattrVerdict::kDrop;
  if (name.starts_with(kOverlayPrefix)) return XattrVerdict::kRefuse;
  return XattrVerdict::kKeep;
}

XattrVerdict JudgePlainXattr(std::string_view name) {
  if (IsHostBound(name) || name.starts_with("trusted.")) return XattrVerdict::kDrop;
  return XattrVerdict::kKeep;
}

XattrVerdict JudgeUpperXattr(std::string_view name) {
  if (IsHostBound(name)) return XattrVerdict::kDrop;
  if (!name.starts_with(kOverlayPrefix)) return XattrVerdict::kKeep;
  std::string_view key = name.substr(kOverlayPrefix.size());
  if (key == "redirect" || key == "metacopy") return XattrVerdict::kRefuse;
  return XattrVerdict::kDrop;
}

}  // namespace esker::import_internal
