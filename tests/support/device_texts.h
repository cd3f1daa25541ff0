// What can be written after --devices, for the tests of the parser and for the tables of docs/devices.md.
#pragma once

namespace lockstep {

/// A text and what it means, in the words of device_spec_test.cpp.
struct ValidDevices {
  const char* text;
  const char* meaning;
};

inline constexpr ValidDevices kValidDevices[] = {
    {"auto", "auto"},
    {" AUTO ", "auto"},
    {"cpu", "cpu"},
    {"1", "first 1"},
    {"3", "first 3"},
    {" 3 ", "first 3"},
    {"16", "first 16"},
    {"17", "first 17"},
    {"-1", "all"},
    {" -1 ", "all"},
    {"1,3", "gpus 1 3"},
    {"1, 3", "gpus 1 3"},
    {"3,1", "gpus 3 1"},
    {"2,", "gpus 2"},
    {"0,", "gpus 0"},
    {"0,2,", "gpus 0 2"},
    {"1,2,19", "gpus 1 2 19"},
    {"[0]", "gpus 0"},
    {"[3]", "gpus 3"},
    {"[1,3]", "gpus 1 3"},
    {"[1, 3]", "gpus 1 3"},
    {"(1,3)", "gpus 1 3"},
    {"{1,3}", "gpus 1 3"},
    {"(2,)", "gpus 2"},
    {"0-3", "gpus 0 1 2 3"},
    {"2-2", "gpus 2"},
    {"0 - 2", "gpus 0 1 2"},
    {"5,0-2", "gpus 5 0 1 2"},
    {"cuda:0", "gpus 0"},
    {"cuda:1", "gpus 1"},
    {"CUDA:0,2-3", "gpus 0 2 3"},
    {"cuda:0,cuda:1", "gpus 0 1"},
    {"usable:2", "usable 2"},
    {"free:2", "free 2 0"},
    {"free:2@8GiB", "free 2 8589934592"},
    {"free:1@512 MiB", "free 1 536870912"},
};

struct InvalidDevices {
  const char* text;
  const char* why;
  const char* hint;
};

inline constexpr const char* kNothing = "this requests no device";
inline constexpr const char* kAllOrOne = "use auto or -1 for all GPUs, \"0,\" for GPU 0";
inline constexpr const char* kExamples = "use auto, a number of devices such as 2, or GPU indices such as 0,2 or 0-3";

inline constexpr InvalidDevices kInvalidDevices[] = {
    {"0", kNothing, kAllOrOne},
    {" 0 ", kNothing, kAllOrOne},
    {"", kNothing, kAllOrOne},
    {"  ", kNothing, kAllOrOne},
    {"[]", kNothing, kAllOrOne},
    {"()", kNothing, kAllOrOne},
    {"{}", kNothing, kAllOrOne},
    {"[ ]", kNothing, kAllOrOne},
    {",", kNothing, kAllOrOne},
    {"none", kNothing, kAllOrOne},
    {"-2", "found -2, expected a number of devices", "use -1 for all GPUs"},
    {"-16", "found -16, expected a number of devices", "use -1 for all GPUs"},
    {"-1,", "found -1, expected a GPU index of 0 or more", "use -1 alone for all GPUs"},
    {"[-1]", "found -1, expected a GPU index of 0 or more", "use -1 alone for all GPUs"},
    {"0,-2", "found -2, expected a GPU index of 0 or more", "use -1 alone for all GPUs"},
    {"0,0", "GPU 0 appears twice", "list every GPU once; each GPU runs one rank"},
    {"0-3,2", "GPU 2 appears twice", "list every GPU once; each GPU runs one rank"},
    {"1,,3", "empty entry in the list", "use 1,3"},
    {"1, ,3", "empty entry in the list", "use 1,3"},
    {",1", "empty entry in the list", "use 1,"},
    {"1,,", "empty entry in the list", "use 1,"},
    {",,", "empty entry in the list", kExamples},
    {"+1", "found +1, expected a number without a sign", "use 1"},
    {"1.0", "found 1.0, expected a whole number", kExamples},
    {"0.1", "found 0.1, expected a whole number", kExamples},
    {"a", "found \"a\", expected GPU indices", kExamples},
    {"true", "found \"true\", expected GPU indices", kExamples},
    {"['0']", "found \"'0'\", expected GPU indices", kExamples},
    {"0x1", "found \"0x1\", expected GPU indices", kExamples},
    {"[0", "found \"[0\", expected GPU indices", kExamples},
    {"-", "found \"-\", expected GPU indices", kExamples},
    {"1;2", "found \"1;2\", expected a list with commas", "use 1,2"},
    {"1 2", "found \"1 2\", expected a list with commas", "use 1,2"},
    {"3-1", "range 3-1 is descending", "use 1-3"},
    {"2-", "found \"2-\", expected GPU indices", kExamples},
    {"0--3", "found \"0--3\", expected GPU indices", kExamples},
    {"0-2147483647", "range 0-2147483647 contains 2147483648 GPUs, the limit is 1024", "use -1 for all GPUs"},
    {"0-1023,2000-2010", "more than 1024 GPUs are listed", "use -1 for all GPUs"},
    {"99999999999", "the number of devices is out of range", kExamples},
    {"99999999999999999999", "the number of devices is out of range", kExamples},
    {"gpu", "expected GPUs by number", "use -1 for all GPUs, 1 for the first, \"0,\" for GPU 0"},
    {"gpu:0", "expected GPU indices", "use cuda:0"},
    {"cuda:", "found \"\", expected GPU indices", kExamples},
    {"cpu:2", "CPU ranks have no indices", "use --compute_setup cpu --devices 2 for two CPU ranks"},
    {"usable", "expected a number of GPUs", "use for example usable:2"},
    {"usable:0", "expected a number of GPUs of 1 or more after the colon", "use for example usable:2"},
    {"usable:-1", "expected a number of GPUs of 1 or more after the colon", "use for example usable:2"},
    {"usable:2@8GiB", "usable does not accept a memory size", "use free:2@8gib"},
    {"free:", "expected a number of GPUs of 1 or more after the colon", "use for example free:2 or free:2@8GiB"},
    {"free:2@", "found \"\", expected a memory size", "use for example free:2@8GiB"},
    {"free:2@8apples", "found \"8apples\", expected a memory size", "use for example free:2@8GiB"},
};

}  // namespace lockstep
