// A layer's names in the order in which they are exported. Private to export.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "imagefs/erofs_reader.h"
#include "imagefs/export.h"

namespace esker::export_internal {

// Some tens of bytes a name: whole paths are made when they are needed.
class LayerNames {
 public:
  struct Name {
    uint32_t parent = 0;  // a directory's place in the list; the root is its own
    uint32_t text = 0;    // place in the names' bytes
    uint64_t nid = 0;
    uint64_t device_offset = 0;  // of a file's first extent
  };
  static Result<LayerNames> Gather(const erofs::LayerReader& layer);

  const std::vector<Name>& directories() const { return directories_; }  // parents first
  // Everything else that is an inode of its own, in the order in which content lies in the data
  // blob, so that it comes to lie so again; what has no content comes first, by path.
  const std::vector<Name>& inodes() const { return inodes_; }
  // Names beyond the first of an inode, and that first one's place in inodes().
  struct Link {
    Name name;
    uint32_t target = 0;
  };
  const std::vector<Link>& links() const { return links_; }

  // "a/b"; "" for the root.
  std::string Path(const Name& name) const;

 private:
  class Walk;
  std::vector<Name> directories_, inodes_;
  std::vector<Link> links_;
  std::string texts_;  // each with a NUL behind it
};

}  // namespace esker::export_internal
