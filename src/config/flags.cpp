#include "config/flags.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "config/command_tokens.h"

namespace lockstep {

Flags::Flags() : impl_(std::make_shared<Impl>()) {}

Flags& Flags::add(std::string name, std::string* value, std::string help, TextKind kind) {
  impl_->flags.push_back({normal_name(name), value, std::move(help), kind});
  return *this;
}

Flags& Flags::add(std::string name, std::int64_t* value, std::string help) {
  impl_->flags.push_back({normal_name(name), value, std::move(help)});
  return *this;
}

Flags& Flags::add(std::string name, double* value, std::string help) {
  impl_->flags.push_back({normal_name(name), value, std::move(help)});
  return *this;
}

Flags& Flags::add(std::string name, bool* value, std::string help) {
  impl_->flags.push_back({normal_name(name), value, std::move(help)});
  return *this;
}

Flags& Flags::positional(std::string field) {
  impl_->positional_fields.push_back(normal_name(field));
  return *this;
}

Flags& Flags::positional(std::string name, std::string* value, std::string help, TextKind kind) {
  impl_->positionals.push_back({normal_name(name), value, std::move(help), kind});
  return *this;
}

Flags& Flags::positional(std::string name, std::int64_t* value, std::string help) {
  impl_->positionals.push_back({normal_name(name), value, std::move(help)});
  return *this;
}

Flags& Flags::may_change(std::string name) {
  const std::string wanted = normal_name(name);
  for (auto* kind : {&impl_->flags, &impl_->positionals}) {
    if (const auto flag = std::ranges::find(*kind, wanted, &ProgramFlag::name); flag != kind->end()) {
      flag->may_change = true;
      return *this;
    }
  }
  throw ConfigError(fmt::format("Flags::may_change: found no flag {} of the program", printable(name)),
                    "add it before, with the same name");
}

}  // namespace lockstep
