/* A stand-in for libnvidia-ml.so.1: a machine of H100s that behaves, or fails in the way NVML_STUB_MODE names.
 *
 * Modes (NVML_STUB_BAD is the index of the device that fails, 1 unless set; NVML_STUB_COUNT the number of devices, 2 unless set):
 *   ok             all is well
 *   none           no device
 *   no_driver      initialisation answers "driver not loaded"
 *   mismatch       initialisation answers "library and kernel module differ"
 *   hang_init      initialisation never returns
 *   freeze         initialisation freezes the process by the control group NVML_STUB_FREEZER, so that SIGKILL does not end it
 *   slow_init      initialisation takes 1.2 s
 *   crash          the process dies of SIGSEGV while it reads the bad device
 *   lost_handle    the bad device cannot be opened: "GPU is lost"
 *   lost_calls     the bad device can be opened and every call to it answers "GPU is lost"
 *   hang_handle    opening the bad device never returns
 *   hang_call      reading the bad device's power never returns
 *   partial        the bad device: power is forbidden, temperature unknown error, memory all bits set
 *   unified        memory is "not supported", as on parts that share the processor's memory
 *   mig            MIG is on: utilisation is "not supported"; instances are kept in the file NVML_STUB_STATE
 *   mig_busy       the same, and something runs in every instance
 *   ecc            the bad device counts two uncorrectable errors
 *   old            a driver without the second form of the memory call
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9,
       FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, MISMATCH = 18, IN_USE = 19, NO_ROOM = 23, UNKNOWN = 999 };

typedef struct { unsigned index; } device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;

static device_t devices[64];

static int is_mode(const char *name) {
    const char *mode = getenv("NVML_STUB_MODE");
    return mode != NULL && strcmp(mode, name) == 0;
}

static int has_mig(void) { return is_mode("mig") || is_mode("mig_busy"); }

static unsigned number_from(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : (unsigned)atoi(text);
}

static int is_bad(device_t *device) { return device->index == number_from("NVML_STUB_BAD", 1); }

static void hang(void) {
    for (;;) pause();
}

static void write_file(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (file == NULL) return;
    fputs(text, file);
    fclose(file);
}

static void freeze(void) {
    const char *folder = getenv("NVML_STUB_FREEZER");
    char pid[32];
    if (folder == NULL) return;
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    write_file(folder, "cgroup.procs", pid);
    write_file(folder, "freezer.state", "FROZEN");
    hang();
}

/* Every call to a device begins here. */
static int begin(device_t *device) { return is_mode("lost_calls") && is_bad(device) ? GPU_IS_LOST : SUCCESS; }

/* Instances of divided devices; a file keeps them, as the driver does, for the next process. */
typedef struct { unsigned is_used, device, profile, start, size, is_filled; } instance_t;
static instance_t instances[64];
static device_t parts[64];

static void load_instances(void) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path == NULL ? NULL : fopen(path, "rb");
    for (unsigned i = 0; i < 64; i++) parts[i].index = 100 + i;
    if (file == NULL) return;
    if (fread(instances, sizeof instances, 1, file) != 1) memset(instances, 0, sizeof instances);
    fclose(file);
}

static int save_instances(void) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path == NULL ? NULL : fopen(path, "wb");
    if (file == NULL) return UNKNOWN;
    fwrite(instances, sizeof instances, 1, file);
    fclose(file);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (unsigned i = 0; i < 64; i++) devices[i].index = i;
    load_instances();
    if (is_mode("hang_init")) hang();
    if (is_mode("freeze")) freeze();
    if (is_mode("slow_init")) usleep(1200000);
    if (is_mode("no_driver")) return DRIVER_NOT_LOADED;
    return is_mode("mismatch") ? MISMATCH : SUCCESS;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error of the stand-in";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "550.54.15");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    snprintf(text, size, "12.550.54.15");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 12040;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = is_mode("none") ? 0 : number_from("NVML_STUB_COUNT", 2);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device) {
    *device = &devices[index];
    if (!is_bad(*device)) return SUCCESS;
    if (is_mode("hang_handle")) hang();
    return is_mode("lost_handle") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetName(device_t *device, char *text, unsigned size) {
    snprintf(text, size, is_mode("unified") ? "NVIDIA GB10" : "NVIDIA H100 80GB HBM3");
    return begin(device);
}

int nvmlDeviceGetUUID(device_t *device, char *text, unsigned size) {
    if (device->index >= 100) {
        snprintf(text, size, "MIG-00000000-0000-4000-8000-%012u", device->index);
        return SUCCESS;
    }
    snprintf(text, size, "GPU-00000000-0000-4000-8000-%012u", device->index);
    return begin(device);
}

int nvmlDeviceGetSerial(device_t *device, char *text, unsigned size) {
    snprintf(text, size, "165000000000%u", device->index);
    return begin(device);
}

int nvmlDeviceGetMinorNumber(device_t *device, unsigned *minor) {
    *minor = device->index;
    return begin(device);
}

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x18 + device->index;
    info->device_id = 0x233010DE;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return begin(device);
}

int nvmlDeviceGetCudaComputeCapability(device_t *device, int *major, int *minor) {
    *major = 9;
    *minor = 0;
    return begin(device);
}

static int memory_answer(device_t *device, unsigned long long *total, unsigned long long *used, unsigned long long *free_) {
    if (is_mode("unified")) return NOT_SUPPORTED;
    *total = 81559ULL << 20;
    *used = (is_mode("crowded") && is_bad(device) ? 61440ULL : 1031ULL) << 20;
    *free_ = *total - *used;
    if (is_mode("partial") && is_bad(device)) *total = ~0ULL;
    return begin(device);
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory) {
    return memory_answer(device, &memory->total, &memory->used, &memory->free);
}

int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *memory) {
    if (is_mode("old")) return FUNCTION_NOT_FOUND;
    memory->reserved = 480ULL << 20;
    return memory_answer(device, &memory->total, &memory->used, &memory->free);
}

int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *rates) {
    if (has_mig()) return NOT_SUPPORTED;
    rates->gpu = 37;
    rates->memory = 12;
    return begin(device);
}

int nvmlDeviceGetPowerUsage(device_t *device, unsigned *milliwatts) {
    if (is_bad(device)) {
        if (is_mode("hang_call")) hang();
        if (is_mode("crash")) raise(SIGSEGV);
        if (is_mode("partial")) return NO_PERMISSION;
    }
    *milliwatts = 112500;
    return begin(device);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t *device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return begin(device);
}

int nvmlDeviceGetTemperature(device_t *device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    if (is_mode("partial") && is_bad(device)) return UNKNOWN;
    *celsius = 41;
    return begin(device);
}

int nvmlDeviceGetEccMode(device_t *device, unsigned *current, unsigned *pending) {
    *current = *pending = 1;
    return begin(device);
}

int nvmlDeviceGetTotalEccErrors(device_t *device, unsigned kind, unsigned counter, unsigned long long *count) {
    (void)kind;
    (void)counter;
    *count = is_mode("ecc") && is_bad(device) ? 2 : 0;
    return begin(device);
}

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    *current = *pending = has_mig() ? 1 : 0;
    return begin(device);
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *count) {
    *count = 7;
    return begin(device);
}

int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *active) {
    if (link >= 4) return INVALID_ARGUMENT;
    *active = link == 3 ? 0 : 1;
    return begin(device);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *device, unsigned link, pci_t *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0xC0 + link);
    return begin(device);
}

typedef struct { unsigned start, size; } place_t;
typedef struct {
    unsigned version, id, p2p, slices, count, processors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory;
    char name[96];
} profile_t;
typedef struct { unsigned version, id, slices, count, processors, copy, decoders, encoders, jpeg, ofa; char name[96]; } filling_t;
typedef struct { device_t *device; unsigned id, profile; place_t place; } instance_info_t;

/* number, id, compute slices, memory slices, how many, the first starts of them */
static const struct { unsigned number, id, compute, size, count, starts[7]; } PROFILES[] = {
    {0, 19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}}, {7, 20, 1, 1, 1, {0, 1, 2, 3, 4, 5, 6}}, {9, 15, 1, 2, 4, {0, 2, 4, 6}},
    {1, 14, 2, 2, 3, {0, 2, 4}},             {2, 9, 3, 4, 2, {0, 4}},                 {3, 5, 4, 4, 1, {0}},
    {4, 0, 7, 8, 1, {0}},
};
enum { KNOWN = sizeof PROFILES / sizeof PROFILES[0] };

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
    unsigned index = (unsigned)atoi(uuid + strlen(uuid) - 12);
    if (index >= number_from("NVML_STUB_COUNT", 2)) return NOT_FOUND;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(device_t *device, unsigned number, profile_t *info) {
    (void)device;
    if (!has_mig()) return NOT_SUPPORTED;
    for (unsigned i = 0; i < KNOWN; i++) {
        if (PROFILES[i].number != number) continue;
        info->id = PROFILES[i].id;
        info->slices = PROFILES[i].compute;
        info->count = PROFILES[i].count;
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_t *device, unsigned id, place_t *places, unsigned *count) {
    (void)device;
    for (unsigned i = 0; i < KNOWN; i++) {
        if (PROFILES[i].id != id) continue;
        *count = id == 20 ? 7 : PROFILES[i].count;
        for (unsigned k = 0; places != NULL && k < *count; k++) {
            places[k].start = PROFILES[i].starts[k];
            places[k].size = PROFILES[i].size;
        }
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(device_t *device, unsigned id, const place_t *place, instance_t **made) {
    for (unsigned i = 0; i < 64; i++) {
        instance_t *other = &instances[i];
        if (other->is_used && other->device == device->index && other->start < place->start + place->size &&
            place->start < other->start + other->size)
            return NO_ROOM;
    }
    for (unsigned i = 0; i < 64; i++) {
        if (instances[i].is_used) continue;
        instances[i] = (instance_t){1, device->index, id, place->start, place->size, 0};
        *made = &instances[i];
        return save_instances();
    }
    return NO_ROOM;
}

int nvmlGpuInstanceDestroy(instance_t *instance) {
    if (instance->is_filled) return IN_USE;
    instance->is_used = 0;
    return save_instances();
}

int nvmlDeviceGetGpuInstances(device_t *device, unsigned id, instance_t **found, unsigned *count) {
    *count = 0;
    for (unsigned i = 0; i < 64; i++)
        if (instances[i].is_used && instances[i].device == device->index && instances[i].profile == id)
            found[(*count)++] = &instances[i];
    return SUCCESS;
}

int nvmlGpuInstanceGetInfo(instance_t *instance, instance_info_t *info) {
    info->device = &devices[instance->device];
    info->id = (unsigned)(instance - instances);
    info->profile = instance->profile;
    info->place = (place_t){instance->start, instance->size};
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance_t *instance, unsigned number, unsigned engine, filling_t *info) {
    (void)engine;
    for (unsigned i = 0; i < KNOWN; i++) {
        /* Only the compute instance that fills the whole: 1, 2, 3, 4 or 7 slices have the numbers 0 to 4. */
        unsigned compute = PROFILES[i].compute, whole = compute == 7 ? 4 : compute - 1;
        if (PROFILES[i].id != instance->profile || whole != number) continue;
        info->id = number;
        info->slices = compute;
        info->count = 1;
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

int nvmlGpuInstanceCreateComputeInstance(instance_t *instance, unsigned id, instance_t **made) {
    (void)id;
    instance->is_filled = 1;
    *made = instance;
    return save_instances();
}

int nvmlGpuInstanceGetComputeInstances(instance_t *instance, unsigned id, instance_t **found, unsigned *count) {
    (void)id;
    *count = instance->is_filled;
    if (instance->is_filled) found[0] = instance;
    return SUCCESS;
}

int nvmlComputeInstanceDestroy(instance_t *instance) {
    if (is_mode("mig_busy")) return IN_USE;
    instance->is_filled = 0;
    return save_instances();
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned index, device_t **part) {
    if (!instances[index].is_used || instances[index].device != device->index) return NOT_FOUND;
    *part = &parts[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(device_t *part, unsigned *id) {
    *id = part->index - 100;
    return SUCCESS;
}
