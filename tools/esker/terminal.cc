#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace esker::cli {

RawTerminal::RawTerminal() {
  if (::tcgetattr(0, &saved_) != 0) return;
  termios raw = saved_;
  ::cfmakeraw(&raw);
  changed_ = ::tcsetattr(0, TCSADRAIN, &raw) == 0;
}

RawTerminal::~RawTerminal() {
  if (changed_) ::tcsetattr(0, TCSADRAIN, &saved_);
}

TerminalSize GetTerminalSize() {
  TerminalSize size;
  winsize window = {};
  if (::ioctl(1, TIOCGWINSZ, &window) == 0 && window.ws_row != 0) {
    size.rows = window.ws_row;
    size.cols = window.ws_col;
  }
  return size;
}

}  // namespace esker::cli
