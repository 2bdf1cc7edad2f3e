// The messages between a node and esker-init, as structs and as bytes (docs/formats/init.md).
// Shared by both sides, so that it is written once.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/wire.h"
#include "executor/init_client.h"

namespace esker::init_protocol {

inline constexpr uint32_t kVersion = 1;
// Chunks of inventories and listings; well below what a socket buffer takes.
inline constexpr size_t kChunkBytes = 48 * 1024;

// Every message starts with the type (u8) and the number of the request (u32) that it is or
// answers.
enum class Type : uint8_t {
  // From the node.
  kHello = 1,        // u32 lowest, u32 highest version spoken
  kStart = 2,        // InitCommandSpec
  kHandover = 3,     // command id
  kSignal = 4,       // command id, i32 signal, u8 whole tree
  kCloseStdin = 5,   // command id
  kResize = 6,       // command id, u16 rows, u16 columns
  kAcknowledge = 7,  // command id; no reply
  kFile = 8,         // InitFileRequest, one descriptor for reads and writes
  kConfigure = 9,    // u32 count of (name, value)
  // From init.
  kInventory = 64,    // u32 version, u8 last, u32 count of InitCommandStatus; answers kHello
  kReply = 65,        // i32 gRPC code, i32 errno, message, then the body of the request's kind
  kExit = 66,         // InitCommandStatus; request 0
  kFileEntries = 67,  // u32 count of InitFileInfo: a part of the result to come
};

// Which pipe ends come with a reply, in this order.
enum PipeBits : uint8_t { kPipeIn = 1, kPipeOut = 2, kPipeErr = 4, kPipePty = 8 };

struct Header {
  Type type;
  uint32_t request;
};

WireWriter Begin(Type type, uint32_t request);
Header ReadHeader(WireReader& reader);

void Put(WireWriter& writer, const InitCommandSpec& spec);
void Put(WireWriter& writer, const InitCommandStatus& status);
void Put(WireWriter& writer, const InitFileRequest& request);
void Put(WireWriter& writer, const InitFileInfo& info);
// The result without its entries, which travel before it in kFileEntries.
void PutTail(WireWriter& writer, const InitFileResult& result);
void PutError(WireWriter& writer, const Status& status);

InitCommandSpec GetSpec(WireReader& reader);
InitCommandStatus GetStatus(WireReader& reader);
InitFileRequest GetFileRequest(WireReader& reader);
InitFileInfo GetFileInfo(WireReader& reader);
InitFileResult GetTail(WireReader& reader);
Status GetError(WireReader& reader);

// Fewest bytes that one of them takes, for GetCount.
inline constexpr size_t kLeastStatusBytes = 38;
inline constexpr size_t kLeastFileInfoBytes = 49;

}  // namespace esker::init_protocol
