// c10d's store with text values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/store.h>

namespace lockstep {

// Throw: CommError if the store or the connection is lost.
void store_set(c10d::Store& store, const std::string& key, std::string_view value);
/// Does nothing if the key is there.
void store_set_if_absent(c10d::Store& store, const std::string& key, std::string_view value);
std::string store_get(c10d::Store& store, const std::string& key);
bool store_check(c10d::Store& store, const std::string& key);
/// Reads all keys with two questions to the store. nullopt: a key is missing, or this kind of store cannot do it.
std::optional<std::vector<std::string>> store_get_all(c10d::Store& store, const std::vector<std::string>& keys);
std::int64_t store_add(c10d::Store& store, const std::string& key, std::int64_t delta);
/// Waits at most `timeout`; false: the key did not appear, and c10d has printed a warning.
bool store_wait(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout);
/// The same without the warning: it polls. `meanwhile` is called after each question.
bool store_poll(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout,
                const std::function<void()>& meanwhile = {});

/// The same with the interface of a Store. `world`: the world's connection, kept open by the result. On rank 0 it may
/// serve the store, which would otherwise end if the World could not be completed.
std::unique_ptr<Store> make_text_store(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Store> world);

}  // namespace lockstep
