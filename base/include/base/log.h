// Logs: one line an event, key=value, to standard error. For operators; results go to callers.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace esker {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogField {
  std::string_view key;
  std::string value;
  LogField(std::string_view k, std::string v) : key(k), value(std::move(v)) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  template <typename T>
    requires std::is_arithmetic_v<T>
  LogField(std::string_view k, T v) : key(k), value(std::to_string(v)) {}
};

// Program name shown in each line and the least level that is printed. Call once at start.
void InitLog(std::string_view program, LogLevel least = LogLevel::kInfo);
// Thread-safe. Values with spaces or control bytes are quoted and escaped, so that text from inside
// a sandbox cannot forge a line.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

inline void LogInfo(std::string_view e, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kInfo, e, f);
}
inline void LogWarning(std::string_view e, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kWarning, e, f);
}
inline void LogError(std::string_view e, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kError, e, f);
}
inline void LogDebug(std::string_view e, std::initializer_list<LogField> f = {}) {
  Log(LogLevel::kDebug, e, f);
}

}  // namespace esker
