// Which extended attributes a layer keeps. Private to import.
#pragma once

#include <string_view>

namespace esker::import_internal {

enum class XattrVerdict { kKeep, kDrop, kRefuse };

inline constexpr std::string_view kOverlayPrefix = "trusted.overlay.";

// In a tar: labels of the host that wrote it (SELinux, SMACK) and its integrity data are dropped;
// trusted.overlay.*, which steers the kernel's overlay, is refused.
XattrVerdict JudgeTarXattr(std::string_view name);
// In a plain directory: trusted.* belongs to the host it lies on.
XattrVerdict JudgePlainXattr(std::string_view name);
// In an overlay's upper: trusted.overlay.* is the overlay's own; what moves content elsewhere
// (redirect, metacopy) cannot be kept, and dropping it would lose files.
XattrVerdict JudgeUpperXattr(std::string_view name);

}  // namespace esker::import_internal
