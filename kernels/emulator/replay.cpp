// Runs recorded launches (tests/emulated/record.rs) in several orders of threads, with buffers of exactly the recorded
// sizes, for sanitizers to watch. Fails when orders differ in a result, or a kernel was never launched.
//
// usage: replay [--smallest N] FILE...     `--smallest`: of each kernel the N launches of the fewest threads alone
#include "emu.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

extern "C" int kin_infer_emulator_launch(const char*, const uint*, const uint*, void* const*, uint, const void*, size_t, uint);
extern "C" const char* kin_infer_emulator_kernel(uint);

struct Reader {
    FILE* file;
    bool whole(void* to, size_t bytes) { return fread(to, 1, bytes, file) == bytes; }
    uint word() {
        uint value = 0;
        if (!whole(&value, 4)) fprintf(stderr, "replay: the file ends early\n"), exit(2);
        return value;
    }
    std::vector<char> bytes() {
        std::vector<char> result(word());
        if (!whole(result.data(), result.size())) fprintf(stderr, "replay: the file ends early\n"), exit(2);
        return result;
    }
};

struct Launch {
    std::string kernel;
    uint shape[6];
    std::vector<char> args;
    std::vector<std::vector<char>> contents;

    double threads() const {
        double product = 1;
        for (uint size : shape) product *= size;
        return product;
    }
};

static void read_launches(const char* path, std::vector<Launch>& launches) {
    Reader reader = {fopen(path, "rb")};
    if (!reader.file) fprintf(stderr, "replay: cannot open %s\n", path), exit(2);
    uint length;
    while (reader.whole(&length, 4)) {
        Launch launch;
        launch.kernel.resize(length);
        if (!reader.whole(&launch.kernel[0], length)) fprintf(stderr, "replay: the file ends early\n"), exit(2);
        for (uint& size : launch.shape) size = reader.word();
        launch.args = reader.bytes();
        launch.contents.resize(reader.word());
        for (auto& buffer : launch.contents) buffer = reader.bytes();
        launches.push_back(std::move(launch));
    }
    fclose(reader.file);
}

// Runs a launch in each order of threads; whether all gave the same.
static bool run(const Launch& launch) {
    const char* kernel = launch.kernel.c_str();
    std::vector<std::vector<char>> results; // of the first order
    for (uint order : {0u, 1u, 5u}) {
        std::vector<void*> buffers;
        for (const auto& content : launch.contents) {
            buffers.push_back(malloc(content.size()));
            memcpy(buffers.back(), content.data(), content.size());
        }
        const int refused = kin_infer_emulator_launch(kernel, launch.shape, launch.shape + 3, buffers.data(),
                                                      uint(buffers.size()), launch.args.data(), launch.args.size(), order);
        for (size_t i = 0; i < buffers.size(); i++) {
            const char* result = static_cast<const char*>(buffers[i]);
            if (order == 0) results.emplace_back(result, result + launch.contents[i].size());
            else if (memcmp(result, results[i].data(), results[i].size()) != 0)
                return fprintf(stderr, "replay: %s depends on the order of threads\n", kernel), false;
            free(buffers[i]);
        }
        if (refused) return fprintf(stderr, "replay: %s is refused: %d\n", kernel, refused), false;
    }
    return true;
}

int main(int count, char** arguments) {
    size_t most = SIZE_MAX;
    int first = 1;
    if (count > 2 && std::string(arguments[1]) == "--smallest") most = strtoul(arguments[2], nullptr, 10), first = 3;
    std::vector<Launch> launches;
    for (int f = first; f < count; f++) read_launches(arguments[f], launches);
    if (most != SIZE_MAX)
        std::stable_sort(launches.begin(), launches.end(),
                         [](const Launch& a, const Launch& b) { return a.threads() < b.threads(); });
    std::map<std::string, size_t> launched;
    size_t ran = 0;
    for (const Launch& launch : launches) {
        if (launched[launch.kernel] == most) continue;
        if (!run(launch)) return 1;
        launched[launch.kernel]++, ran++;
    }
    uint missing = 0, kernels = 0;
    for (uint i = 0; const char* kernel = kin_infer_emulator_kernel(i); i++, kernels++)
        if (launched[kernel] == 0) fprintf(stderr, "replay: no launch of %s\n", kernel), missing++;
    printf("%zu launches of %u kernels, each in 3 orders of threads\n", ran, kernels);
    return missing != 0;
}
