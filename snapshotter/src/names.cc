#include "names.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/id.h"

namespace esker {
namespace {

constexpr size_t kMaxPath = 200;
constexpr size_t kMaxTag = 128;
constexpr size_t kMaxRecordName = 255;        // one file name,
constexpr std::string_view kEscaped = "/:@";  // in which these take three bytes

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool IsWord(char c) { return IsLowerOrDigit(c) || (c >= 'A' && c <= 'Z') || c == '_'; }

Status Refuse(const std::string& reference, const std::string& why) {
  return InvalidArgumentError("image name \"" + reference.substr(0, 300) + "\": " + why);
}

Status CheckPath(const std::string& reference, std::string_view path) {
  if (path.empty()) return Refuse(reference, "the name before the colon is empty");
  if (path.size() > kMaxPath) {
    return Refuse(reference, "the name is longer than " + std::to_string(kMaxPath) + " bytes");
  }
  bool at_start = true;
  for (char c : path) {
    if (c == '/') {
      if (at_start) return Refuse(reference, "a part between slashes is empty");
      at_start = true;
      continue;
    }
    if (!IsLowerOrDigit(c) && (at_start || (c != '.' && c != '_' && c != '-'))) {
      return Refuse(reference,
                    "a name is made of [a-z0-9._-] and slashes, each part starting with [a-z0-9]");
    }
    at_start = false;
  }
  if (at_start) return Refuse(reference, "it ends in a slash");
  return OkStatus();
}

Status CheckTag(const std::string& reference, std::string_view tag) {
  if (tag.empty()) return Refuse(reference, "the tag after the colon is empty");
  if (tag.size() > kMaxTag) {
    return Refuse(reference, "the tag is longer than " + std::to_string(kMaxTag) + " bytes");
  }
  for (size_t i = 0; i < tag.size(); ++i) {
    if (!IsWord(tag[i]) && (i == 0 || (tag[i] != '.' && tag[i] != '-'))) {
      return Refuse(reference, "a tag is made of [A-Za-z0-9._-] and starts with none of . and -");
    }
  }
  return OkStatus();
}

// Takes "@project/" off the front of a reference that has it.
Status TakeProject(const std::string& reference, std::string_view& path, std::string_view& owner) {
  if (!path.starts_with('@')) return OkStatus();
  const size_t slash = path.find('/');
  if (slash == path.npos) return Refuse(reference, "after @PROJECT follows a slash and the name");
  ESKER_RETURN_IF_ERROR(CheckIdentifier("the project of an image name", path.substr(1, slash - 1)));
  owner = path.substr(0, slash + 1);
  path.remove_prefix(slash + 1);
  return OkStatus();
}

}  // namespace

Result<std::string> NormaliseTag(const std::string& reference) {
  std::string_view path = reference, owner;
  ESKER_RETURN_IF_ERROR(TakeProject(reference, path, owner));
  std::string_view tag = "latest";
  if (size_t colon = path.find(':'); colon != path.npos) {
    tag = path.substr(colon + 1);
    path = path.substr(0, colon);
    if (tag.find('/') != tag.npos) {
      return Refuse(reference, "a colon before a slash (a registry's port) cannot be in a name");
    }
  }
  ESKER_RETURN_IF_ERROR(CheckPath(reference, path));
  ESKER_RETURN_IF_ERROR(CheckTag(reference, tag));
  std::string full = std::string(owner) + std::string(path) + ":" + std::string(tag);
  size_t escaped = static_cast<size_t>(std::count_if(
      full.begin(), full.end(), [](char c) { return kEscaped.find(c) != kEscaped.npos; }));
  if (full.size() + 2 * escaped > kMaxRecordName) {
    return Refuse(reference, "project, name and tag together are too long");
  }
  return full;
}

std::string_view ProjectOfName(std::string_view full_name) {
  if (!full_name.starts_with('@')) return {};
  return full_name.substr(1, full_name.find('/') - 1);
}

std::string_view NameWithoutProject(std::string_view full_name) {
  return full_name.starts_with('@') ? full_name.substr(full_name.find('/') + 1) : full_name;
}

Result<std::string> NameInProject(const std::string& project, const std::string& reference) {
  ESKER_ASSIGN_OR_RETURN(std::string full, NormaliseTag(reference));
  const std::string_view said = ProjectOfName(full);
  if (project.empty() || said == project) return full;
  if (said.empty()) return NormaliseTag("@" + project + "/" + full);
  return PermissionDeniedError("image name " + full + " is not one of project " + project);
}

bool ShowsName(const ImageView& view, std::string_view full_name) {
  const std::string_view project = ProjectOfName(full_name);
  return view.all || project.empty() || project == view.project;
}

std::vector<std::string> NamesToTry(const std::string& full_name, const ImageView& view) {
  if (!ShowsName(view, full_name)) return {};
  if (view.project.empty() || !ProjectOfName(full_name).empty()) return {full_name};
  return {"@" + view.project + "/" + full_name, full_name};
}

bool RestrictToView(const ImageView& view, ImageRecord& record) {
  if (view.all) return true;
  auto hidden = [&](const std::string& name) { return !ShowsName(view, name); };
  std::erase_if(record.tags, hidden);
  std::erase_if(record.jobs, [&](const auto& job) { return hidden(job.first); });
  if (!record.tags.empty()) return true;
  // Without a name: a snapshot is its project's; anything else is nobody's.
  const auto owner = record.manifest.origin.find("project");
  return record.manifest.kind == "snapshot" && owner != record.manifest.origin.end() &&
         !view.project.empty() && owner->second == view.project;
}

size_t EditDistance(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return limit + 1;
  std::vector<size_t> row(a.size() + 1);
  for (size_t i = 0; i <= a.size(); ++i) row[i] = i;
  for (size_t j = 1; j <= b.size(); ++j) {
    size_t diagonal = std::exchange(row[0], j);
    size_t least = row[0];
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[i];
      row[i] = std::min({row[i] + 1, row[i - 1] + 1, changed});
      least = std::min(least, row[i]);
    }
    if (least > limit) return limit + 1;
  }
  return std::min(row[a.size()], limit + 1);
}

std::vector<std::string> NearestNames(std::string_view wanted,
                                      const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const std::string_view path = NameWithoutProject(wanted.substr(0, wanted.find(':')));
  const size_t limit = std::max<size_t>(2, wanted.size() / 3);
  std::vector<std::pair<size_t, std::string>> found;
  for (const std::string& name : names) {
    // The same name of another project is as near as can be.
    const std::string_view plain = NameWithoutProject(name);
    size_t distance = EditDistance(NameWithoutProject(wanted), plain, limit);
    // Another tag of the same name is near however different the tag looks.
    if (plain.substr(0, plain.find(':')) == path) distance = std::min<size_t>(distance, 1);
    if (distance <= limit) found.emplace_back(distance, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> nearest;
  for (size_t i = 0; i < found.size() && i < kShown; ++i) nearest.push_back(found[i].second);
  return nearest;
}

}  // namespace esker
