# One image for every process; the command decides which. Layers from what changes least to what changes most.
FROM python:3.11-slim AS build

RUN pip install --no-cache-dir uv && python -m venv --without-pip /opt/millpond
WORKDIR /src

# Dependencies first, pinned with their hashes (`make lock`): this layer is rebuilt only when they change.
COPY requirements.lock ./
RUN uv pip install --python /opt/millpond --compile-bytecode --no-cache --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE NOTICE ./
COPY services services
COPY client client
COPY migrations migrations
RUN uv pip install --python /opt/millpond --compile-bytecode --no-cache --no-deps .


FROM python:3.11-slim

RUN groupadd --system --gid 10001 millpond \
    && useradd --system --uid 10001 --gid millpond --home-dir /var/lib/millpond --create-home millpond
COPY --from=build /opt/millpond /opt/millpond
ENV PATH=/opt/millpond/bin:$PATH PYTHONUNBUFFERED=1

USER millpond
WORKDIR /var/lib/millpond
VOLUME /var/lib/millpond
EXPOSE 8000
CMD ["millpond", "--help"]
