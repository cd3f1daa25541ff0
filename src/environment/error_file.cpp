#include "environment/error_file.h"

#include <ctime>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

namespace lockstep {

void write_error_file(const std::string& path, std::string_view text) noexcept try {
  if (path.empty()) {
    return;
  }
  // torchrun's summary prints only the call stack, not the message.
  const std::string content =
      dump_json(Json{{"message",
                      {{"message", text},
                       {"extraInfo", {{"py_callstack", text}, {"timestamp", std::to_string(std::time(nullptr))}}}}}});
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (fd >= 0) {
    if (fchmod(fd, S_IRUSR | S_IWUSR) != 0 || write(fd, content.data(), content.size()) < 0) {
      unlink(path.c_str());  // remove half a report
    }
    close(fd);
  }
} catch (const std::exception&) {
  // The error is on the screen in any case.
}

}  // namespace lockstep
