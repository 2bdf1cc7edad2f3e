#include "session_state.h"

#include <fcntl.h>
#include <linux/fuse.h>

#include <cstdio>

#include "base/digest.h"
#include "base/io.h"
#include "base/wire.h"

namespace esker {
namespace {
constexpr std::string_view kMagic = "ESKINIT1";
}  // namespace

Status SaveSessionState(const std::string& path, const SessionState& state) {
  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(Crc32c(state.init_request.data(), state.init_request.size()));
  out.PutBytes(state.init_request);
  std::string temporary = path + ".new";
  {
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd,
                           OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ESKER_RETURN_IF_ERROR(WriteFull(fd.get(), out.data().data(), out.data().size()));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoError("publish " + path);
  return OkStatus();
}

Result<SessionState> LoadSessionState(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(std::string bytes, ReadFileToString(path, 64 * 1024));
  WireReader in(bytes);
  bool magic_ok = in.GetRaw(kMagic.size()) == kMagic;
  auto checksum = in.Get<uint32_t>();
  SessionState state{in.GetString()};
  ESKER_RETURN_IF_ERROR(in.Finish(path));
  if (!magic_ok || checksum != Crc32c(state.init_request.data(), state.init_request.size()) ||
      state.init_request.size() < sizeof(fuse_in_header)) {
    return DataLossError(path + " is not a saved FUSE session");
  }
  return state;
}

}  // namespace esker
