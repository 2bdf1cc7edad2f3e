#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace esker {
namespace {

std::string Quote(std::string_view value) {
  bool plain = !value.empty();
  for (unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c >= 0x7f) plain = false;
  }
  if (plain) return std::string(value);
  std::string out = "\"";
  for (unsigned char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < ' ' || c >= 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

spdlog::logger& Logger() {
  static auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("esker",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n %v", spdlog::pattern_time_type::utc);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

std::string& ProgramName() {
  static std::string name = "esker";
  return name;
}

spdlog::level::level_enum Convert(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void InitLog(std::string_view program, LogLevel least) {
  ProgramName() = program;
  Logger().set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l " + std::string(program) + " %v",
                       spdlog::pattern_time_type::utc);
  Logger().set_level(Convert(least));
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  std::string line = Quote(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    line += Quote(field.value);
  }
  Logger().log(Convert(level), line);
}

}  // namespace esker
