#include "config/flags.h"

#include <algorithm>

namespace lockstep {

std::string normal_name(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

std::string environment_name(std::string_view field) {
  std::string name = "LOCKSTEP_CFG_";
  for (const char c : field) {
    name += c == '.' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

Flags::Flags() : impl_(std::make_shared<Impl>()) {}

Flags& Flags::add(std::string name, std::string* value, std::string help) {
  impl_->flags.push_back({normal_name(name), value, std::move(help)});
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

Flags& Flags::positional(std::string name, std::string* value, std::string help) {
  impl_->positionals.push_back({normal_name(name), value, std::move(help)});
  return *this;
}

Flags& Flags::positional(std::string name, std::int64_t* value, std::string help) {
  impl_->positionals.push_back({normal_name(name), value, std::move(help)});
  return *this;
}

}  // namespace lockstep
