{{- define "moldau.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "moldau.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "moldau.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "moldau.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "moldau.selector" -}}
app.kubernetes.io/name: {{ include "moldau.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- end }}

{{- define "moldau.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "moldau.selector" . }}
{{- end }}

{{- define "moldau.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "moldau.usesRedis" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret }}true{{ end }}
{{- end }}

{{- define "moldau.advertisedHost" -}}
{{- .Values.advertisedHost | default (printf "%s.%s.svc.%s" (include "moldau.fullname" .) .Release.Namespace .Values.clusterDomain) }}
{{- end }}

{{- define "moldau.scheme" -}}
{{ if .Values.secure }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{/* The claim with the store's files and the certificates; empty: there is none. */}}
{{- define "moldau.claim" -}}
{{- if .Values.persistence.existingClaim }}
{{- .Values.persistence.existingClaim }}
{{- else if .Values.persistence.enabled }}
{{- if include "moldau.usesRedis" . }}{{ include "moldau.fullname" . }}{{ else }}data-{{ include "moldau.fullname" . }}-0{{ end }}
{{- end }}
{{- end }}

{{- define "moldau.claimSpec" -}}
accessModes: {{ toYaml .Values.persistence.accessModes | nindent 2 }}
{{- with .Values.persistence.storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.persistence.size }}
{{- end }}

{{/* What cannot work is refused before anything is installed. */}}
{{- define "moldau.check" -}}
{{- if and .Values.redis.url .Values.redis.existingSecret }}
{{- fail "redis.url and redis.existingSecret are both set: leave one out" }}
{{- end }}
{{- if and .Values.redis.url (regexMatch "://[^/]*@" .Values.redis.url) }}
{{- fail "redis.url has a password, which everybody could read in the pod: put the URL into a Secret, and name it in redis.existingSecret" }}
{{- end }}
{{- if and .Values.tls.secretName (not .Values.secure) }}
{{- fail "tls.secretName needs secure: true" }}
{{- end }}
{{- if and .Values.secure (not (include "moldau.claim" .)) }}
{{- fail "secure needs a volume: the administrator's password and the CA would be lost with the pod. Set persistence.enabled, or secure: false" }}
{{- end }}
{{- end }}

{{- define "moldau.pod" -}}
metadata:
  labels:
    {{- include "moldau.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include (print .Template.BasePath "/configmap.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  # A service called moldau would set MOLDAU_PORT and the like.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext: {{ toYaml .Values.podSecurityContext | nindent 4 }}
  containers:
    - name: moldau
      image: {{ include "moldau.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      securityContext: {{ toYaml .Values.securityContext | nindent 8 }}
      env:
        - name: MOLDAU_CONFIG
          value: /etc/moldau/moldau.toml
        - name: MOLDAU_HOST
          value: 0.0.0.0
        - name: MOLDAU_PORT
          value: {{ .Values.service.port | quote }}
        - name: MOLDAU_WORKERS
          value: {{ .Values.workers.count | quote }}
        - name: MOLDAU_ROUTERS
          value: {{ .Values.routers | quote }}
        - name: MOLDAU_ADVERTISE
          value: {{ ternary "workers" "router" .Values.workers.expose }}
        - name: MOLDAU_ADVERTISED_HOST
          value: {{ include "moldau.advertisedHost" . | quote }}
        - name: MOLDAU_HTTP
          value: {{ printf "%s0.0.0.0:%v" (ternary "https://" "" .Values.secure) .Values.http.port | quote }}
        - name: {{ ternary "MOLDAU_SECURE" "MOLDAU_INSECURE" .Values.secure }}
          value: "true"
        - name: MOLDAU_DATA_DIR
          value: /data
        - name: MOLDAU_RUNTIME_DIR
          value: /run/moldau/processes
        {{- if .Values.tls.secretName }}
        - name: MOLDAU_BROKER_SSL_KEYSTORE_LOCATION
          value: /etc/moldau/tls/{{ .Values.tls.key }}
        {{- end }}
        {{- if .Values.redis.existingSecret }}
        - name: MOLDAU_REDIS
          valueFrom:
            secretKeyRef:
              name: {{ .Values.redis.existingSecret }}
              key: {{ .Values.redis.existingSecretKey }}
        {{- else if .Values.redis.url }}
        - name: MOLDAU_REDIS
          value: {{ .Values.redis.url | quote }}
        {{- else }}
        - name: MOLDAU_STORE_FSYNC
          value: {{ .Values.store.fsync }}
        {{- with .Values.store.maxmemory }}
        - name: MOLDAU_STORE_MAXMEMORY
          value: {{ . | quote }}
        {{- end }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: kafka
          containerPort: {{ .Values.service.port }}
        - name: http
          containerPort: {{ .Values.http.port }}
        {{- if .Values.workers.expose }}
        {{- range $index := until (int .Values.workers.count) }}
        - name: worker-{{ $index }}
          containerPort: {{ add $.Values.service.port 1 $index }}
        {{- end }}
        {{- end }}
      startupProbe:
        httpGet: { path: /readyz, port: http, scheme: {{ include "moldau.scheme" . }} }
        periodSeconds: {{ .Values.startup.periodSeconds }}
        failureThreshold: {{ .Values.startup.failureThreshold }}
        timeoutSeconds: 5
      readinessProbe:
        httpGet: { path: /readyz, port: http, scheme: {{ include "moldau.scheme" . }} }
        periodSeconds: 5
        timeoutSeconds: 5
      livenessProbe:
        httpGet: { path: /livez, port: http, scheme: {{ include "moldau.scheme" . }} }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- with .Values.resources }}
      resources: {{ toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - { name: data, mountPath: /data }
        - { name: run, mountPath: /run/moldau }
        - { name: config, mountPath: /etc/moldau/moldau.toml, subPath: moldau.toml, readOnly: true }
        {{- if .Values.tls.secretName }}
        - { name: tls, mountPath: /etc/moldau/tls, readOnly: true }
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "moldau.fullname" . }}
    - name: run
      emptyDir: { medium: Memory, sizeLimit: 16Mi }
    {{- if .Values.tls.secretName }}
    - name: tls
      secret:
        secretName: {{ .Values.tls.secretName }}
        defaultMode: 0440
    {{- end }}
    {{- if not (include "moldau.claim" .) }}
    - name: data
      emptyDir: {}
    {{- else if or .Values.persistence.existingClaim (include "moldau.usesRedis" .) }}
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "moldau.claim" . }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
