if [ ! -e /dev/nvidiactl ]; then
    echo "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available."
fi
