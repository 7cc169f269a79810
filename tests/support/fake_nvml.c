/* A stand-in for libnvidia-ml.so.1 with the ABI of nvml.h: two GPUs. FAKE_NVML_REASONS: throttle
   reasons of GPU 1. FAKE_NVML_PID: a process on GPU 0. FAKE_NVML_XID, FAKE_NVML_DEAD: if set. Energy rises by 250 J with each reading. */
int snprintf(char *text, unsigned long size, const char *format, ...);
char *getenv(const char *name);
int atoi(const char *text);
unsigned long long strtoull(const char *text, char **end, int base);

typedef struct { unsigned index; } *device;
static struct { unsigned index; } gpus[2] = {{0}, {1}};
static unsigned long long energy[2] = {1000000, 2000000};

int nvmlInit_v2(void) { return getenv("FAKE_NVML_DEAD") ? 999 : 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) { *out = (device)&gpus[index]; return 0; }
int nvmlDeviceGetUUID(device d, char *text, unsigned size) { snprintf(text, size, "GPU-%u", d->index); return 0; }
int nvmlDeviceGetMinorNumber(device d, unsigned *minor) { *minor = d->index; return 0; }
typedef struct { char legacy[16]; unsigned domain, bus, device, ids[2]; char id[32]; } nvmlPciInfo_t;
int nvmlDeviceGetPciInfo_v3(device d, nvmlPciInfo_t *pci)
{
    pci->domain = 0; pci->bus = 7 + 8 * d->index; pci->device = 0;
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
    return 0;
}
int nvmlDeviceGetName(device d, char *text, unsigned size) { (void)d; snprintf(text, size, "NVIDIA A100-SXM4-40GB"); return 0; }
int nvmlDeviceGetMaxClockInfo(device d, int kind, unsigned *mhz) { (void)d; *mhz = kind == 1 ? 1410 : 1215; return 0; }
int nvmlDeviceGetClockInfo(device d, int kind, unsigned *mhz) { *mhz = kind == 1 ? (d->index ? 1095 : 1410) : 1215; return 0; }
int nvmlDeviceGetPowerUsage(device d, unsigned *mw) { (void)d; *mw = 312500; return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(device d, unsigned *mw) { (void)d; *mw = 400000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *mw) { *mw = d->index ? 300000 : 400000; return 0; }
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *c) { if (sensor) return 2; *c = 61 + d->index; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *reasons)
{
    const char *set = getenv("FAKE_NVML_REASONS");
    *reasons = d->index && set ? strtoull(set, 0, 0) : 4;
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(device d, unsigned long long *mj) { *mj = energy[d->index]; energy[d->index] += 250000; return 0; }
int nvmlDeviceGetTotalEccErrors(device d, int kind, int counter, unsigned long long *count) { (void)counter; if (d->index) return 3; *count = kind ? 0 : 5; return 0; }
int nvmlDeviceGetRemappedRows(device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    *corrected = 1; *uncorrected = 2; *pending = d->index; *failed = 0;
    return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(device d, unsigned *g) { (void)d; *g = 4; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(device d, unsigned *g) { (void)d; *g = 4; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(device d, unsigned *w) { *w = d->index ? 8 : 16; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(device d, unsigned *w) { (void)d; *w = 16; return 0; }
int nvmlDeviceGetNvLinkState(device d, unsigned link, int *active) { if (link >= 12) return 2; *active = !(d->index && link == 3); return 0; }
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
int nvmlDeviceGetUtilizationRates(device d, nvmlUtilization_t *rates) { rates->gpu = d->index ? 0 : 97; rates->memory = 55; return 0; }
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
int nvmlDeviceGetMemoryInfo(device d, nvmlMemory_t *memory)
{
    if (d->index) return 3;
    memory->total = 42949672960; memory->used = 31138512896; memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending) { (void)d; *now = *pending = 0; return 0; }

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
} nvmlFieldValue_t;
int nvmlDeviceGetFieldValues(device d, int count, nvmlFieldValue_t *values)
{
    if (count != 1 || values[0].fieldId != 82) return 2;
    values[0].nvmlReturn = d->index ? 3 : 0;
    values[0].value.ui = 77;
    return 0;
}

typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, nvmlProcessInfo_t *infos)
{
    const char *pid = getenv("FAKE_NVML_PID");
    unsigned wanted = d->index == 0 && pid ? 2 : 0;
    if (*count < wanted) { *count = wanted; return 7; }
    if (wanted) { infos[0].pid = (unsigned)atoi(pid); infos[1].pid = 4194304; }
    *count = wanted;
    return 0;
}

typedef struct { device d; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; } nvmlEventData_t;
static int xids = 1;
int nvmlEventSetCreate(void **set) { *set = &xids; return 0; }
int nvmlDeviceRegisterEvents(device d, unsigned long long kinds, void *set) { (void)d; (void)set; return kinds == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, nvmlEventData_t *data, unsigned ms)
{
    (void)set; (void)ms;
    if (!getenv("FAKE_NVML_XID") || !xids) return 10;
    xids = 0;
    data->eventType = 8; data->eventData = 79;
    return 0;
}
