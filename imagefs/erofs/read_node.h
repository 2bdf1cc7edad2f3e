// An inode's content as a Node. Private to erofs.
#pragma once

#include "image_view.h"
#include "imagefs/erofs.h"

namespace esker::erofs {

Result<Node> ReadNode(const ImageView& image, const InodeView& inode);

}  // namespace esker::erofs
