"""Images without a container engine: the Dockerfile's steps, run by Charliecloud, Enroot or Apptainer."""
