// The keeper's messages: base/wire.h over SEQPACKET. docs/formats/keeper.md is the specification.
//
// Every message starts with a kind and a request id. The client sends requests; the keeper answers
// each exactly once with kReply and the same id, in any order, and sends kEnded unasked (id 0). A
// request with id 0 gets no answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "executor/keeper_client.h"

namespace esker::keeper {

inline constexpr uint32_t kMagic = 0x52504b45;  // "EKPR"
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kMaxLayers = 498;      // overlayfs takes 500 lowers; one is the skeleton
inline constexpr size_t kMaxCgroupTasks = 16;  // v1 hierarchies
inline constexpr size_t kListPage = 60;        // pidfds in one answer; below kMaxSocketFds
inline constexpr uint64_t kNoAnswer = 0;
inline constexpr uint64_t kMaxHostId = 0xfffffffe;  // 2^32 - 1 means "no id"

enum class Kind : uint8_t {
  kHello = 1,
  kCreate = 2,
  kList = 3,
  kAcknowledgeEnd = 4,
  kDropIdleLayers = 5,
  kBlobServerPid = 6,
  kReplaceBlobServer = 7,
  kShutdown = 8,
  kUpgradeBlobServer = 9,
  kReply = 100,
  kEnded = 101,
};

struct Header {
  Kind kind;
  uint64_t id;
};
void PutHeader(WireWriter& writer, Kind kind, uint64_t id);
Header GetHeader(WireReader& reader);

// kHello carries it, and the reply carries the keeper's own: both must agree.
struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t first_host_id = 0;
  uint32_t range_size = 0;
  std::string store_directory, cache_directory;
};
void PutHello(WireWriter& writer, const Hello& hello);
Hello GetHello(WireReader& reader);
// OK, or FAILED_PRECONDITION that names what differs.
Status CheckHello(const Hello& mine, const Hello& theirs);

// Descriptors of kCreate, in this order: listening socket, cgroup2 directory (if has_unified),
// volume (if has_volume), one tasks file per v1 hierarchy.
struct CreateRequest {
  ContainerSpec spec;
  bool has_unified = false;
  bool has_volume = false;
  uint32_t task_count = 0;
};
void PutCreate(WireWriter& writer, const CreateRequest& request);
CreateRequest GetCreate(WireReader& reader);
// Everything the keeper relies on: names, paths, bounds. INVALID_ARGUMENT names the field.
Status CheckCreate(const CreateRequest& request, const KeeperOptions& options);

// The status of a reply comes before its body; the body is there only when it is OK.
void PutStatus(WireWriter& writer, const Status& status);
Status GetStatus(WireReader& reader);

void PutIdentity(WireWriter& writer, const ProcessIdentity& identity);
ProcessIdentity GetIdentity(WireReader& reader);
void PutEnd(WireWriter& writer, const ContainerEnd& end);
ContainerEnd GetEnd(WireReader& reader);

}  // namespace esker::keeper
