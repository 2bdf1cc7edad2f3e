// What the node's database holds: sandboxes, commands, answered requests, events. Each value is
// u32 magic | u8 version | fields (base/wire.h) | u32 crc32c; docs/formats/node-db.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/process.h"
#include "base/status.h"
#include "executor/node.h"

namespace esker {

// The stages of a sandbox as they are recorded; SandboxState is what a client sees of them.
enum class SandboxPhase : uint8_t {
  kCreating = 1,
  kRunning = 2,
  kPaused = 3,
  kEnding = 4,  // decided, being torn down; shown with the state it had last
  kEnded = 5,
};

struct SandboxRecord {
  SandboxInfo info;
  SandboxPhase phase = SandboxPhase::kCreating;
  uint32_t range = 0;           // number of its host id range
  ProcessIdentity init;         // 0 until it runs
  std::string boot_id;          // of the machine when it was made
  std::string request_keys[2];  // database keys of the requests that this sandbox answers

  std::string Serialise() const;
  // DATA_LOSS for anything that Serialise did not write.
  static Result<SandboxRecord> Parse(std::string_view bytes);
};

struct CommandRecord {
  CommandInfo info;
  bool started = false;  // init has confirmed it: otherwise only the intent is known
  uint64_t stdin_accepted = 0;
  bool stdin_closed = false;

  std::string Serialise() const;
  static Result<CommandRecord> Parse(std::string_view bytes);
};

// One request that must not be done twice: what was asked (hash) and what came of it.
struct RequestRecord {
  int64_t time_ns = 0;
  Digest asked;
  bool answered = false;  // false: the intent only
  std::string answer;     // by kind: a sandbox id, or an encoded SnapshotInfo

  std::string Serialise() const;
  static Result<RequestRecord> Parse(std::string_view bytes);
};

std::string SerialiseEvent(const SandboxEvent& event);
Result<SandboxEvent> ParseEvent(std::string_view bytes);

std::string SerialiseSnapshotInfo(const SnapshotInfo& info);
Result<SnapshotInfo> ParseSnapshotInfo(std::string_view bytes);

// What must be the same for two calls to count as one.
Digest HashOf(const SandboxSpec& spec);
Digest HashOf(const CommandSpec& spec);

// --- keys: one letter, then names that hold no '/' but in the last part
std::string SandboxKey(std::string_view sandbox);
std::string CommandKey(std::string_view sandbox, std::string_view command);
std::string EventKey(std::string_view sandbox, uint64_t sequence);
std::string RequestKey(std::string_view kind, std::string_view scope, std::string_view request);
inline constexpr std::string_view kSandboxPrefix = "s/";
inline constexpr std::string_view kCommandPrefix = "c/";
inline constexpr std::string_view kEventPrefix = "e/";
inline constexpr std::string_view kRequestPrefix = "r/";

}  // namespace esker
