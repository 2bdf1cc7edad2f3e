// The user's own terminal during exec -it.
#pragma once

#include <termios.h>

#include <cstdint>

namespace esker::cli {

// Raw mode for standard input while it lives, if that is a terminal.
class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();

 private:
  bool changed_ = false;
  termios saved_ = {};
};

struct TerminalSize {
  uint16_t rows = 24, cols = 80;
};
TerminalSize GetTerminalSize();

}  // namespace esker::cli
