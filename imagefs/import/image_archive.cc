#include "imagefs/image_archive.h"

#include <fcntl.h>

#include "archive_file.h"
#include "base/io.h"
#include "docker_archive.h"
#include "oci_layout.h"

namespace esker {
namespace {

using import_internal::BlobFiles;

Result<std::unique_ptr<BlobFiles>> OpenTar(const std::string& path, const ArchiveOptions& options) {
  ESKER_ASSIGN_OR_RETURN(import_internal::FileRange file,
                         import_internal::OpenArchiveFile(path, options));
  return import_internal::TarFiles(std::move(file));
}

Result<std::unique_ptr<ImageArchive>> Wrapped(Result<std::unique_ptr<ImageArchive>> result,
                                              const std::string& what) {
  if (result.ok()) return result;
  return std::move(result).status().Wrap(what);
}

}  // namespace

Result<std::unique_ptr<ImageArchive>> ImageArchive::OpenOciLayout(const std::string& path,
                                                                  std::string_view tag,
                                                                  const ArchiveOptions& options) {
  auto open = [&]() -> Result<std::unique_ptr<ImageArchive>> {
    ESKER_ASSIGN_OR_RETURN(UniqueFd root, OpenFile(path, O_RDONLY | O_DIRECTORY));
    return import_internal::OpenLayout(import_internal::FolderFiles(std::move(root)), tag, options);
  };
  return Wrapped(open(), "OCI layout " + path);
}

Result<std::unique_ptr<ImageArchive>> ImageArchive::OpenOciArchive(const std::string& path,
                                                                   std::string_view tag,
                                                                   const ArchiveOptions& options) {
  auto open = [&]() -> Result<std::unique_ptr<ImageArchive>> {
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<BlobFiles> files, OpenTar(path, options));
    return import_internal::OpenLayout(std::move(files), tag, options);
  };
  return Wrapped(open(), "OCI archive " + path);
}

Result<std::unique_ptr<ImageArchive>> ImageArchive::OpenDockerArchive(
    const std::string& path, std::string_view name, const ArchiveOptions& options) {
  auto open = [&]() -> Result<std::unique_ptr<ImageArchive>> {
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<BlobFiles> files, OpenTar(path, options));
    auto has = [&](const char* name_inside) { return files->Find(name_inside).ok(); };
    if (has("oci-layout") && has("index.json")) {
      return import_internal::OpenLayout(std::move(files), name, options);
    }
    if (has("manifest.json")) {
      return import_internal::OpenDockerManifest(std::move(files), name, options);
    }
    if (has("repositories")) {
      return import_internal::OpenDockerRepositories(std::move(files), name, options);
    }
    return InvalidArgumentError(
        "it is no docker archive: it has neither index.json, nor manifest.json, nor repositories");
  };
  return Wrapped(open(), "docker archive " + path);
}

}  // namespace esker
