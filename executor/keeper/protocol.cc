#include "protocol.h"

#include <cstring>

#include "base/digest.h"
#include "base/id.h"

namespace esker::keeper {
namespace {

Status CheckPath(std::string_view what, std::string_view path) {
  if (path.empty() || path[0] != '/' || path.size() >= 4096 ||
      path.find('\0') != std::string_view::npos) {
    return InvalidArgumentError(std::string(what) + " is not an absolute path: \"" +
                                std::string(path.substr(0, 200)) + "\"");
  }
  return OkStatus();
}

Status CheckHostname(std::string_view name) {
  if (name.empty() || name.size() > 63) {
    return InvalidArgumentError("a host name has 1 to 63 characters, not " +
                                std::to_string(name.size()));
  }
  for (char c : name) {
    bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                c == '-' || c == '.' || c == '_';
    if (!good) return InvalidArgumentError("the host name has a character that none may have");
  }
  return OkStatus();
}

}  // namespace

void PutHeader(WireWriter& writer, Kind kind, uint64_t id) {
  writer.Put<uint8_t>(static_cast<uint8_t>(kind));
  writer.Put<uint64_t>(id);
}

Header GetHeader(WireReader& reader) {
  Kind kind = static_cast<Kind>(reader.Get<uint8_t>());
  return Header{kind, reader.Get<uint64_t>()};
}

void PutHello(WireWriter& writer, const Hello& hello) {
  writer.Put<uint32_t>(hello.magic);
  writer.Put<uint32_t>(hello.version);
  writer.Put<uint32_t>(hello.first_host_id);
  writer.Put<uint32_t>(hello.range_size);
  writer.PutBytes(hello.store_directory);
  writer.PutBytes(hello.cache_directory);
}

Hello GetHello(WireReader& reader) {
  Hello hello;
  hello.magic = reader.Get<uint32_t>();
  hello.version = reader.Get<uint32_t>();
  hello.first_host_id = reader.Get<uint32_t>();
  hello.range_size = reader.Get<uint32_t>();
  hello.store_directory = reader.GetString();
  hello.cache_directory = reader.GetString();
  return hello;
}

Status CheckHello(const Hello& mine, const Hello& theirs) {
  auto differ = [](const std::string& what, const std::string& a, const std::string& b) {
    return FailedPreconditionError("the keeper that runs here has another " + what + " (" + b +
                                   ", wanted " + a +
                                   "); end its sandboxes with `serve --drain` and start again");
  };
  if (theirs.magic != kMagic) return FailedPreconditionError("the other side is no keeper");
  if (mine.version != theirs.version) {
    return differ("protocol version", std::to_string(mine.version), std::to_string(theirs.version));
  }
  if (mine.first_host_id != theirs.first_host_id || mine.range_size != theirs.range_size) {
    auto show = [](const Hello& h) {
      return std::to_string(h.first_host_id) + " by " + std::to_string(h.range_size);
    };
    return differ("host id range", show(mine), show(theirs));
  }
  if (mine.store_directory != theirs.store_directory) {
    return differ("store", mine.store_directory, theirs.store_directory);
  }
  if (mine.cache_directory != theirs.cache_directory) {
    return differ("cache", mine.cache_directory, theirs.cache_directory);
  }
  return OkStatus();
}

void PutCreate(WireWriter& writer, const CreateRequest& request) {
  const ContainerSpec& spec = request.spec;
  writer.PutBytes(spec.sandbox_id);
  writer.Put<uint32_t>(static_cast<uint32_t>(spec.layers.size()));
  for (const KeeperLayer& layer : spec.layers) {
    writer.PutBytes(layer.metadata_path);
    writer.PutBytes(layer.data_blob);
    writer.PutBytes(layer.complete_path);
  }
  writer.Put<uint32_t>(spec.range);
  writer.PutBytes(spec.hostname);
  writer.Put<uint8_t>(spec.read_only);
  writer.Put<uint64_t>(spec.shm_bytes);
  writer.Put<uint32_t>(spec.nofile_limit);
  writer.Put<uint8_t>(spec.private_network);
  writer.Put<uint8_t>(request.has_unified);
  writer.Put<uint8_t>(request.has_volume);
  writer.Put<uint32_t>(request.task_count);
}

CreateRequest GetCreate(WireReader& reader) {
  CreateRequest request;
  ContainerSpec& spec = request.spec;
  spec.sandbox_id = reader.GetString();
  uint32_t layers = reader.GetCount(3 * sizeof(uint32_t));
  for (uint32_t i = 0; i < layers && reader.ok(); ++i) {
    KeeperLayer layer;
    layer.metadata_path = reader.GetString();
    layer.data_blob = reader.GetString();
    layer.complete_path = reader.GetString();
    spec.layers.push_back(std::move(layer));
  }
  spec.range = reader.Get<uint32_t>();
  spec.hostname = reader.GetString();
  spec.read_only = reader.Get<uint8_t>() != 0;
  spec.shm_bytes = reader.Get<uint64_t>();
  spec.nofile_limit = reader.Get<uint32_t>();
  spec.private_network = reader.Get<uint8_t>() != 0;
  request.has_unified = reader.Get<uint8_t>() != 0;
  request.has_volume = reader.Get<uint8_t>() != 0;
  request.task_count = reader.Get<uint32_t>();
  return request;
}

Status CheckCreate(const CreateRequest& request, const KeeperOptions& options) {
  const ContainerSpec& spec = request.spec;
  ESKER_RETURN_IF_ERROR(CheckIdentifier("sandbox id", spec.sandbox_id));
  ESKER_RETURN_IF_ERROR(CheckHostname(spec.hostname));
  if (spec.layers.empty() || spec.layers.size() > kMaxLayers) {
    return InvalidArgumentError("a container has 1 to " + std::to_string(kMaxLayers) +
                                " layers, not " + std::to_string(spec.layers.size()));
  }
  for (const KeeperLayer& layer : spec.layers) {
    ESKER_RETURN_IF_ERROR(CheckPath("a layer's metadata", layer.metadata_path));
    if (!layer.complete_path.empty()) {
      ESKER_RETURN_IF_ERROR(CheckPath("a layer's data", layer.complete_path));
    }
    if (!layer.data_blob.empty()) {
      Result<Digest> blob = Digest::FromHex(layer.data_blob);
      if (!blob.ok()) return blob.status().Wrap("a layer's data blob");
    }
  }
  uint64_t end = options.first_host_id + (uint64_t{spec.range} + 1) * uint64_t{options.range_size};
  if (end > kMaxHostId) {
    return InvalidArgumentError("host id range " + std::to_string(spec.range) +
                                " ends beyond the last host id");
  }
  if (request.task_count > kMaxCgroupTasks) {
    return InvalidArgumentError("too many cgroup hierarchies");
  }
  return OkStatus();
}

void PutStatus(WireWriter& writer, const Status& status) {
  writer.Put<uint8_t>(static_cast<uint8_t>(status.code()));
  writer.Put<int32_t>(status.error_number());
  writer.PutBytes(status.ok() ? std::string_view() : std::string_view(status.message()));
}

Status GetStatus(WireReader& reader) {
  uint8_t code = reader.Get<uint8_t>();
  int32_t error = reader.Get<int32_t>();
  std::string message = reader.GetString();
  if (!reader.ok()) return DataLossError("a reply of the keeper is cut off");
  if (code == 0) return OkStatus();
  if (code > static_cast<uint8_t>(Code::kUnauthenticated)) {
    return DataLossError("a reply of the keeper has the unknown code " + std::to_string(code));
  }
  if (error == 0) return Status(static_cast<Code>(code), std::move(message));
  // FromErrno adds the errno's text, which the message ends with already.
  std::string suffix = ": " + std::string(strerror(error));
  if (message.ends_with(suffix)) message.resize(message.size() - suffix.size());
  return Status::FromErrno(error, message).WithCode(static_cast<Code>(code));
}

void PutIdentity(WireWriter& writer, const ProcessIdentity& identity) {
  writer.Put<int32_t>(identity.pid);
  writer.Put<uint64_t>(identity.pidfd_inode);
}

ProcessIdentity GetIdentity(WireReader& reader) {
  pid_t pid = reader.Get<int32_t>();
  return ProcessIdentity{pid, reader.Get<uint64_t>()};
}

void PutEnd(WireWriter& writer, const ContainerEnd& end) {
  writer.PutBytes(end.sandbox_id);
  writer.Put<int32_t>(end.wait_status);
}

ContainerEnd GetEnd(WireReader& reader) {
  ContainerEnd end;
  end.sandbox_id = reader.GetString();
  end.wait_status = reader.Get<int32_t>();
  return end;
}

}  // namespace esker::keeper
