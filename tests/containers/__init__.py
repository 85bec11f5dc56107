"""The images and the stack of docker-compose.yaml on a container engine: ``make compose-test``."""
