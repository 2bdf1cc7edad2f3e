// Reading OCI JSON, which strangers wrote. Private to import.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace esker::import_internal {

using Json = nlohmann::json;

inline constexpr size_t kMaxOciJsonBytes = 8u << 20;

// An object; INVALID_ARGUMENT naming `what` otherwise.
Result<Json> ParseJsonObject(std::string_view text, const std::string& what);

// Members of an object. A missing member and null are the same (Go's encoders write both): the
// getter gives the empty value. Another type is INVALID_ARGUMENT that names `what` and the key.
Result<std::string> GetString(const Json& object, const char* key, const std::string& what);
Result<uint64_t> GetUnsigned(const Json& object, const char* key, const std::string& what);
// The array or object under the key; nullptr if missing or null.
Result<const Json*> GetArray(const Json& object, const char* key, const std::string& what);
Result<const Json*> GetObject(const Json& object, const char* key, const std::string& what);

// OK for "sha256:" and 64 lower-case hex digits.
Status CheckOciDigest(std::string_view digest);

}  // namespace esker::import_internal
