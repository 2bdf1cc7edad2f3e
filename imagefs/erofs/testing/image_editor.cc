#include "testing/image_editor.h"

namespace esker::erofs {
namespace {

Node Make(FileType type) {
  Node node;
  node.type = type;
  node.uid = 100'000;  // keeps the inode extended
  return node;
}

}  // namespace

Tree SampleTree() {
  Tree tree;
  auto put = [&](const std::string& path, Node node) {
    EXPECT_TRUE(tree.Put(path, std::move(node)).ok()) << path;
  };
  put("/", Make(FileType::kDirectory));
  Node file = Make(FileType::kRegular);
  file.size = 5 * kBlockSize;
  file.extents = {{0, 2 * kBlockSize, 0}, {4 * kBlockSize, kBlockSize, 20 * kBlockSize}};
  put("dir/file", file);
  put("dir/empty", Make(FileType::kRegular));
  put("dir", Make(FileType::kDirectory));
  put("dir/sub", Make(FileType::kDirectory));
  put("dir/sub/deep", Make(FileType::kDirectory));
  put("dir/two", Make(FileType::kDirectory));
  Node link = Make(FileType::kSymlink);
  link.symlink_target = "target";
  put("link", link);
  link.symlink_target = std::string(4090, 'l');
  put("long", link);
  put("fifo", Make(FileType::kFifo));
  Node device = Make(FileType::kCharDevice);
  device.device_major = 1;
  put("device", device);
  Node attributes = Make(FileType::kRegular);
  attributes.xattrs = {{"trusted.a", "12345"}, {"user.b", "value"}, {"user.c", "xyz"}};
  put("attributes", attributes);
  Node opaque = Make(FileType::kDirectory);
  opaque.xattrs = {{"trusted.overlay.opaque", "y"}};
  put("opaque", opaque);
  put("hard", Make(FileType::kRegular));
  EXPECT_TRUE(tree.Link("dir/hard", "hard").ok());
  put("big", Make(FileType::kDirectory));
  for (int i = 1000; i < 1600; ++i) put("big/name" + std::to_string(i), Node{});
  return tree;
}

ImageEditor SampleImage() {
  auto image = WriteMetadata(SampleTree(), {.data_device_bytes = kSampleLimits.data_device_bytes});
  EXPECT_TRUE(image.ok()) << image.status().ToString();
  return ImageEditor(*image);
}

}  // namespace esker::erofs
